"""The page of a diagnosis: the answer first, then what to do layer by layer, then the evidence; one HTML file."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any, Protocol

from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.report import Budget
from fpsim.analysis.studies.diagnosis.advice import Diagnosed, beside_batches, judged_by, kind_of
from fpsim.analysis.studies.diagnosis.verdict import LINES, Verdict, is_high, relative
from fpsim.analysis.studies.sensitivity.row import figure_of, spread_of
from fpsim.display.pages import Picture, TableCell, TableRow, markup, render, versions
from fpsim.display.wording import plural, printable
from fpsim.errors import install

PLOTS = f"Pictures need matplotlib: {install('plot')}"
WORST = 3  # layers whose worst values are shown
MOST_LAYERS = 24  # of a picture of causes: the worst ones

DEFINITIONS = (
    ("fprop, dgrad, wgrad", "the three products of a layer: its output x wᵀ, the gradient of its input dy w, and that "
     "of its weight dyᵀ x; of a convolution x are the patches of its input."),
    ("Error of a product", "its relative error in the Frobenius norm beside the exact product of the same operands, as "
     "the recipe rounds and the hardware adds, bit for bit. That of rows and columns is the root mean square of each "
     "one's own."),
    ("Inherited", "what the exact product of the operands is off by that arrive where all layers follow the recipe."),
    ("Error of the gradients", "|g − g0| / |g0| over all parameters of the model, with one product low, or all at "
     "once; g0 has torch's own products. Mean over the batches, with its standard deviation."),
    ("Bits a value", "the mean over the operands that products read, scales included. It says nothing about time."),
)  # fmt: skip


DEFINITIONS_OF_OUTPUTS = (
    ("fprop", "the product of a layer: its output x wᵀ; of a convolution x are the patches of its input."),
    *DEFINITIONS[1:3],
    ("Error of the outputs", "|y − y0| / |y0| over all that the model returns, with all products low at once, or where "
     "that is too much with one; y0 has torch's own products. Mean over the batches, with its standard deviation."),
    DEFINITIONS[4],
)  # fmt: skip


class Paged(Diagnosed, Protocol):
    """What the page shows of a `Diagnosis`."""

    @property
    def recording(self) -> Recording: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def sentences(self) -> tuple[str, ...]: ...
    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def model(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def budgeted(self) -> int: ...
    @property
    def heads(self) -> tuple[str, ...]: ...
    def ill(self, recipe: str | None = None) -> tuple[str, ...]: ...
    def rows(self) -> list[tuple[str, ...]]: ...


def page(found: Paged) -> str:
    """The whole page as text.

    Raises:
      ImportError: jinja2 is not installed.
    """
    drawn = importlib.util.find_spec("matplotlib") is not None
    batches = len(found.sensitivity.losses)
    return render(
        "fpsim.analysis.studies.diagnosis",
        "diagnosis.html.jinja",
        title="fpsim diagnose",
        lead=_lead(found),
        answer=_unbroken(found.sentences[0]),
        more=[_unbroken(line) for line in found.sentences[1:]],
        plots="" if drawn else PLOTS,
        layers=_layers(found),
        recipes=(_recipe_heads(found), [_recipe_row(found, name) for name in found.sensitivity.recipes]),
        causes=[_causes(found, name) for name in _drawn(found)] if drawn else [],
        effects=[_effects(found)] if drawn and _any_alone(found) else [],
        plans=[_frontier(found)] if drawn and len(found.plan.recipes) > 1 else [],
        plan_answer=found.plan.answer,
        candidates=(_candidate_heads(found), _candidates(found)),
        additivity=[str(each) for each in found.sensitivity.additivity()],
        settings=[str(each) for each in found.plan.settings],
        worst=[str(found.budget.worst(layer)) for layer in _worst(found)],
        products=(_product_heads(found), [_product_row(found, one) for one in (*found.verdicts, *found.alone)]),
        ranges=(RANGE_HEADS, [_range_row(row) for row in found.recording if row.layer]),
        written=found.plan.to_toml() if importlib.util.find_spec("tomli_w") is not None else "",
        limit=relative(found.limit),
        lines=relative(LINES * found.limit),
        budgeted=found.budgeted,
        batches=batches,
        notes=[printable(note) for note in found.notes],
        definitions=DEFINITIONS if found.sensitivity.has_loss else DEFINITIONS_OF_OUTPUTS,
        judged=judged_by(found),
        has_loss=found.sensitivity.has_loss,
        identity=found.identity,
        versions=versions("fpsim-numerics", "numpy", "torch"),
    )


def _lead(found: Paged) -> str:
    """What was diagnosed, in a line."""
    products = len({(one.layer, one.product) for one in found.verdicts})
    batches = plural(len(found.sensitivity.losses), "batch", "batches")
    return (
        f"{found.model}: {plural(len(found.layers), kind_of(found))}, {plural(products, 'product')}, {batches}, "
        f"{plural(len(found.sensitivity.recipes), 'recipe')} on {found.on}"
    )


def _unbroken(line: str) -> str:
    """A sentence in which no line ends in front of a per cent sign."""
    return line.replace(" %", "\N{NO-BREAK SPACE}%")


# ---- tables


def _share(value: float) -> TableCell:
    return TableCell(relative(value), value)


def _layers(found: Paged) -> tuple[Any, list[TableRow]]:
    """The table of layers; why some cannot go lower is a column where there are any."""
    bad = {printable(layer) or "the model" for layer in found.ill()} if found.low else set()
    columns = tuple((head, False) for head in found.heads[:-1])
    if not bad:
        return columns, [TableRow(cells[:-1]) for cells in found.rows()]
    heads = (*columns, (f"why it cannot go to {found.low} as it is", False))
    return heads, [TableRow(cells, marked=cells[0] in bad) for cells in found.rows()]


def _recipe_heads(found: Paged) -> tuple[Any, ...]:
    judged = ((f"{judged_by(found)} off, all at once", True), ("± over batches", True))
    more = (("outputs off", True), ("loss", True), ("", False)) if found.sensitivity.has_loss else ()
    return (("recipe", False), ("bits a value", True), ("products that fit", True), *judged, *more)


def _recipe_row(found: Paged, name: str) -> TableRow:
    rows = [one for one in found.verdicts if one.recipe == name]
    fits = sum(one.fits for one in rows)
    bits = math.fsum(one.bits * one.values for one in rows) / max(sum(one.values for one in rows), 1)
    joint = next(row for row in found.sensitivity.joint if row.recipe == name)
    slots = len({(one.layer, one.product) for one in found.verdicts})
    figure = found.sensitivity.figure
    judged = _share(figure_of(joint, figure)), _share(spread_of(joint, figure))
    more = (
        _share(joint.output_error), TableCell(f"{joint.loss_change:+.2g}", joint.loss_change),
        beside_batches(joint).removeprefix("which is "),
    ) if found.sensitivity.has_loss else ()  # fmt: skip
    return TableRow((
        name, TableCell(f"{bits:.3g}", bits), TableCell(f"{fits} of {slots}", fits), *judged, *more,
    ), marked=fits < slots)  # fmt: skip


def _candidate_heads(found: Paged) -> tuple[Any, ...]:
    predicted = f"{judged_by(found)} off, if errors add up"
    named = ((predicted, True), ("measured at once", True), ("± over batches", True))
    return (("plan", False), ("bits a value", True), *named)


def _candidates(found: Paged) -> list[TableRow]:
    """The plans, equal ones in one row."""
    of: dict[tuple[Any, ...], list[Any]] = {}
    for one in found.plan.candidates:
        of.setdefault(tuple(sorted(one.assignment.items())), []).append(one)
    return [_candidate_row(each[0], [RECOMMENDED.get(one.method, one.method) for one in each]) for each in of.values()]


RECOMMENDED = {"milp": "recommended"}


def _candidate_row(one: Any, methods: Sequence[str]) -> TableRow:
    measured, spread = (math.nan, math.nan) if one.joint is None else one.joint[:2]
    return TableRow((
        " = ".join(methods), TableCell(f"{one.cost:.4g}", one.cost), _share(one.predicted), _share(measured),
        _share(spread),
    ))  # fmt: skip


def _product_heads(found: Paged) -> tuple[Any, ...]:
    named = (("layer", False), ("product", False), ("recipe", False), ("bits", True), ("off by", True))
    effects = (("rows, columns", True), ("inherited", True), (f"{judged_by(found)} off", True), ("±", True))
    return (*named, *effects, ("mostly from", False), ("why not", False))


CAUSES = {
    "rounding_a": "rounding of a", "rounding_b": "rounding of b", "scales": "scales", "sums": "sums",
    "cast": "cast of the result", "": "–",
}  # fmt: skip


def _product_row(found: Paged, one: Verdict) -> TableRow:
    has_loss = found.sensitivity.has_loss
    effect = (one.gradient_error, one.gradient_spread) if has_loss else (one.output_error, one.output_spread)
    return TableRow((
        printable(one.layer) or "the model", one.product, one.recipe, TableCell(f"{one.bits:.4g}", one.bits),
        _share(one.error), _share(one.lines), _share(one.inherited), *map(_share, effect), CAUSES[one.cause], one.why,
    ), marked=not one.fits)  # fmt: skip


RANGE_HEADS = (
    ("layer", False), ("tensor", False), ("batch", True), ("largest", True), ("median", True),
    ("largest / median", True), ("below E4M3", True), ("E4M3, one scale", True),
)  # fmt: skip


def _range_row(row: Any) -> TableRow:
    spread, median = row.range, row.range.magnitude(0.5)
    ratio = spread.amax / median if median > 0 else math.nan
    below = spread.shares("e4m3")["below"]
    sqnr = next((each.sqnr_db for each in row.errors if each.format == "E4M3"), math.nan)
    number = "–" if math.isnan(sqnr) else f"{sqnr:.1f} dB" if math.isfinite(sqnr) else "no error"
    return TableRow((
        printable(row.layer), row.tensor.replace("_", " "), TableCell(str(row.step), row.step),
        TableCell(f"{spread.amax:.3g}", spread.amax), TableCell(f"{median:.3g}", median),
        TableCell("–" if math.isnan(ratio) else f"{ratio:.3g}", ratio), _share(below), TableCell(number, sqnr),
    ))  # fmt: skip


# ---- pictures


def _drawn(found: Paged) -> list[str]:
    """The recipes whose causes are drawn: those of fewer than 16 bits, the one that the answer speaks of first."""
    lows = [name for name, recipe in found.sensitivity.recipes.items() if not is_high(recipe) and name in found.budgets]
    lows = [name for name in lows if found.budgets[name].rows]
    names = sorted(lows, key=lambda name: name != found.low)
    return names or [name for name in found.budgets if found.budgets[name].rows]


def _worst(found: Paged) -> list[str]:
    """The layers whose worst values are shown."""
    return [layer for layer, _ in found.budget.ranking[:WORST]]


def _any_alone(found: Paged) -> bool:
    """Return whether a product was measured alone."""
    return any(not math.isnan(figure_of(row, found.sensitivity.figure)) for row in found.sensitivity.rows)


def _causes(found: Paged, name: str) -> Picture:
    """A bar for each product of the worst layers, cut by cause."""
    import dataclasses

    from fpsim.analysis.studies.budget.figure import BAR, EDGES, GAP

    whole = found.budgets[name]
    layers = {layer for layer, _ in whole.ranking[:MOST_LAYERS]}
    rows = tuple(row for row in whole.rows if row.layer in layers)
    some = dataclasses.replace(whole, rows=rows)
    height = EDGES + BAR * len(rows) + GAP * len(layers)
    return _picture(some.plot(_axes(height)), f"causes-{len(name)}-{name}", f"Where {name} loses")


def _effects(found: Paged) -> Picture:
    from fpsim.analysis.studies.sensitivity.figure import ROOM

    layers = min(len(found.layers), MOST_LAYERS)
    return _picture(
        found.sensitivity.plot(_axes(1.1 + ROOM * layers)),
        "effects",
        f"What each product does to the {judged_by(found)}",
    )


def _frontier(found: Paged) -> Picture:
    return _picture(found.plan.plot(_axes(3.2)), "plan", "What more bits would bring")


def _axes(height: float) -> Any:
    """Axes of a figure as wide as those that reports draw."""
    from fpsim.display.figure import WIDTH, figure_style
    from fpsim.display.optional import load

    with figure_style():
        figure = load("matplotlib.figure", "drawing").Figure(figsize=(WIDTH + 1.5, height), layout="constrained")
        return figure.subplots()


def _picture(ax: Any, name: str, title: str) -> Picture:
    from fpsim.display.figure import to_svg

    plain = "".join(sign if sign.isalnum() else "-" for sign in name)
    return Picture(title, markup(to_svg(ax.figure, plain, title)))
