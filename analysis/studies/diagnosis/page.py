"""The page of a diagnosis, one HTML file: the answer, then what to do layer by layer, then the evidence."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Sequence
from typing import Any

from fpsim.analysis.studies.diagnosis.diagnosed import Diagnosed, judged_by, kind_of
from fpsim.analysis.studies.diagnosis.recommendation import beside_batches
from fpsim.analysis.studies.diagnosis.verdict import LINES, Verdict, is_high, mean_bits, relative
from fpsim.analysis.studies.page import PLOTS, drawable, picture
from fpsim.analysis.studies.sensitivity.row import figure_of, spread_of
from fpsim.display.optional import Axes
from fpsim.display.pages import Picture, TableCell, TableRow, render, versions
from fpsim.display.wording import plural, printable

WORST = 3  # layers whose worst values are shown
FRONTIER = "The error of plans with more bits"  # title of a picture
MOST_LAYERS = 24  # layers that a picture of causes shows, the worst ones

DEFINITIONS = (
    ("fprop, dgrad, wgrad", "the three products of a layer: its output x wᵀ, the gradient of its input dy w, and that "
     "of its weight dyᵀ x; of a convolution x are the patches of its input."),
    ("Error of a product", "its relative error in the Frobenius norm compared with the exact product of the same "
     "operands. The operands are rounded as the recipe says and the products added as the hardware does, bit for bit. "
     "The error of rows and columns is the root mean square of the errors of each row, or of each column."),
    ("Inherited", "the relative error that the exact product has because its operands come from layers that all follow "
     "the recipe."),
    ("Error of the gradients", "|g − g0| / |g0| over all parameters of the model, with one product in low precision, "
     "or all at once; g0 are the gradients with torch's own products. Mean over the batches, with the standard "
     "deviation."),
    ("Bits a value", "the mean over all values of the operands that products read, scales included. It does not tell "
     "how much time a product takes."),
)  # fmt: skip


DEFINITIONS_OF_OUTPUTS = (
    ("fprop", "the product of a layer: its output x wᵀ; of a convolution x are the patches of its input."),
    *DEFINITIONS[1:3],
    ("Error of the outputs", "|y − y0| / |y0| over all that the model returns, with all products in low precision at "
     "once, or with one where all are beyond the limit; y0 are the outputs with torch's own products. Mean over the "
     "batches, with the standard deviation."),
    DEFINITIONS[4],
)  # fmt: skip


def page(diagnosis: Diagnosed, sentences: Sequence[str]) -> str:
    """Return the page of a diagnosis as HTML, with `sentences` as its answer; raise an ImportError without jinja2."""
    drawn, has_loss = drawable(), diagnosis.sensitivity.has_loss
    figure = diagnosis.sensitivity.figure
    any_alone = any(not math.isnan(figure_of(row, figure)) for row in diagnosis.sensitivity.rows)
    return render(
        "fpsim.analysis.studies.diagnosis",
        "diagnosis.html.jinja",
        title="fpsim diagnose",
        lead=_lead(diagnosis),
        answer=_unbroken(sentences[0]),
        more=[_unbroken(line) for line in sentences[1:]],
        plots="" if drawn else PLOTS,
        layers=_layers(diagnosis),
        recipes=_recipes(diagnosis),
        causes=[_causes(diagnosis, name) for name in _drawn(diagnosis)] if drawn else [],
        effects=[_effects(diagnosis)] if drawn and any_alone else [],
        plans=[_picture(diagnosis.plan.plot(_axes(3.2)), "plan", FRONTIER)]
        if drawn and len(diagnosis.plan.recipes) > 1
        else [],
        plan_answer=diagnosis.plan.answer,
        candidates=_candidates(diagnosis),
        additivity=list(map(str, diagnosis.sensitivity.additivity())),
        settings=list(map(str, diagnosis.plan.settings)),
        worst=[str(diagnosis.budget.worst(layer)) for layer, _ in diagnosis.budget.ranking[:WORST]],
        products=_products(diagnosis),
        ranges=(RANGE_HEADS, [_range_row(row) for row in diagnosis.recording if row.layer]),
        written=diagnosis.plan.to_toml() if importlib.util.find_spec("tomli_w") is not None else "",
        limit=relative(diagnosis.limit),
        lines=relative(LINES * diagnosis.limit),
        budgeted=diagnosis.budgeted,
        batches=len(diagnosis.sensitivity.losses),
        notes=[printable(note) for note in diagnosis.notes],
        definitions=DEFINITIONS if has_loss else DEFINITIONS_OF_OUTPUTS,
        judged=judged_by(diagnosis),
        has_loss=has_loss,
        identity=diagnosis.identity,
        versions=versions("fpsim-numerics", "numpy", "torch"),
    )


def _lead(diagnosis: Diagnosed) -> str:
    """Return the line above the page's answer: the model, and its numbers of layers, products, batches and recipes."""
    products = len({(verdict.layer, verdict.product) for verdict in diagnosis.verdicts})
    batches = plural(len(diagnosis.sensitivity.losses), "batch", "batches")
    layers, recipes = plural(len(diagnosis.layers), kind_of(diagnosis)), len(diagnosis.sensitivity.recipes)
    return (
        f"{diagnosis.model}: {layers}, {plural(products, 'product')}, {batches}, {plural(recipes, 'recipe')} on "
        f"{diagnosis.on}"
    )


def _unbroken(line: str) -> str:
    """Return a sentence with no-break spaces before its per cent signs."""
    return line.replace(" %", "\N{NO-BREAK SPACE}%")


# ---- tables: the columns, as pairs (heading, whether the column holds numbers), and the rows


def _share(value: float) -> TableCell:
    """Return a table cell that shows a relative error as a percentage and is sorted by the error."""
    return TableCell(relative(value), value)


def _layers(diagnosis: Diagnosed) -> tuple[Any, list[TableRow]]:
    """Return the headings and the rows of the table of layers.

    If some layers cannot use the recipe `diagnosis.low`, their rows are marked, and the last column says why.
    """
    bad = {printable(layer) or "the model" for layer in diagnosis.ill()} if diagnosis.low else set()
    columns = tuple((head, False) for head in diagnosis.heads[:-1])
    if not bad:
        return columns, [TableRow(cells[:-1]) for cells in diagnosis.rows()]
    heads = (*columns, (f"why it cannot use {diagnosis.low} as it is", False))
    return heads, [TableRow(cells, marked=cells[0] in bad) for cells in diagnosis.rows()]


def _recipes(diagnosis: Diagnosed) -> tuple[Any, list[TableRow]]:
    """Return the headings and the rows of the table of recipes: bits, products that fit, and errors of the model."""
    judged = ((f"error of {judged_by(diagnosis)}, all at once", True), ("± over batches", True))
    heads: tuple[Any, ...] = (("recipe", False), ("bits a value", True), ("products that fit", True), *judged)
    if diagnosis.sensitivity.has_loss:
        heads = (*heads, ("error of outputs", True), ("change of the loss", True), ("", False))
    return heads, [_recipe_row(diagnosis, name) for name in diagnosis.sensitivity.recipes]


def _recipe_row(diagnosis: Diagnosed, name: str) -> TableRow:
    """Return the table row of a recipe called `name`.

    The row has the mean bits per value, the number of products that fit, and the model's error of gradients (without a
    loss, of outputs) with all products in the recipe at once. With a loss, the errors of outputs and loss follow.
    """
    rows = [verdict for verdict in diagnosis.verdicts if verdict.recipe == name]
    fits, bits = sum(verdict.fits for verdict in rows), mean_bits(rows)
    joint = next(row for row in diagnosis.sensitivity.joint if row.recipe == name)
    slots = len({(verdict.layer, verdict.product) for verdict in diagnosis.verdicts})
    figure = diagnosis.sensitivity.figure
    judged = _share(figure_of(joint, figure)), _share(spread_of(joint, figure))
    more = (
        _share(joint.output_error), TableCell(f"{joint.loss_change:+.2g}", joint.loss_change),
        beside_batches(joint),
    ) if diagnosis.sensitivity.has_loss else ()  # fmt: skip
    return TableRow((
        name, TableCell(f"{bits:.3g}", bits), TableCell(f"{fits} of {slots}", fits), *judged, *more,
    ), marked=fits < slots)  # fmt: skip


def _candidates(diagnosis: Diagnosed) -> tuple[Any, list[TableRow]]:
    """Return the headings and the rows of the table of plans; plans with the same recipes share a row."""
    equal: dict[tuple[Any, ...], list[Any]] = {}
    for plan in diagnosis.plan.candidates:
        equal.setdefault(tuple(sorted(plan.assignment.items())), []).append(plan)
    rows = []
    for plans in equal.values():
        plan = plans[0]
        methods = " = ".join("recommended" if same.method == "milp" else same.method for same in plans)
        measured, spread = (math.nan, math.nan) if plan.joint is None else plan.joint[:2]
        cost = TableCell(f"{plan.cost:.4g}", plan.cost)
        rows.append(TableRow((methods, cost, _share(plan.predicted), _share(measured), _share(spread))))
    predicted = f"error of {judged_by(diagnosis)}, predicted"
    named = ((predicted, True), ("measured at once", True), ("± over batches", True))
    return (("plan", False), ("bits a value", True), *named), rows


def _products(diagnosis: Diagnosed) -> tuple[Any, list[TableRow]]:
    """Return the headings and the rows of the table of verdicts, one for each product in each recipe."""
    named = (("layer", False), ("product", False), ("recipe", False), ("bits", True), ("relative error", True))
    effects = (("rows, columns", True), ("inherited", True), (f"error of {judged_by(diagnosis)}", True), ("±", True))
    heads = (*named, *effects, ("largest cause", False), ("why it does not fit", False))
    has_loss = diagnosis.sensitivity.has_loss
    return heads, [_product_row(verdict, has_loss) for verdict in (*diagnosis.verdicts, *diagnosis.alone)]


CAUSES = {
    "rounding_a": "rounding of a", "rounding_b": "rounding of b", "scales": "scales", "sums": "sums",
    "cast": "cast of the result", "": "–",
}  # fmt: skip


def _product_row(row: Verdict, has_loss: bool) -> TableRow:
    """Return the table row of one product in one recipe, given the verdict on it.

    `has_loss`: whether errors of gradients are shown, else of outputs.
    """
    effect = (row.gradient_error, row.gradient_spread) if has_loss else (row.output_error, row.output_spread)
    return TableRow((
        printable(row.layer) or "the model", row.product, row.recipe, TableCell(f"{row.bits:.4g}", row.bits),
        _share(row.error), _share(row.lines), _share(row.inherited), *map(_share, effect), CAUSES[row.cause], row.why,
    ), marked=not row.fits)  # fmt: skip


RANGE_HEADS = (
    ("layer", False), ("tensor", False), ("batch", True), ("largest", True), ("median", True),
    ("largest / median", True), ("below E4M3", True), ("E4M3, one scale", True),
)  # fmt: skip


def _range_row(row: Any) -> TableRow:
    """Return the table row of one recorded tensor.

    The table row has the tensor's range, the share of values below E4M3's smallest subnormal, and the SQNR in E4M3 with
    one scale. `row`: a row of a Recording.
    """
    spread, median = row.range, row.range.magnitude(0.5)
    ratio = spread.amax / median if median > 0 else math.nan
    below = spread.shares("e4m3")["below"]
    sqnr = next((report.sqnr_db for report in row.errors if report.format == "E4M3"), math.nan)
    number = "–" if math.isnan(sqnr) else f"{sqnr:.1f} dB" if math.isfinite(sqnr) else "no error"
    return TableRow((
        printable(row.layer), row.tensor.replace("_", " "), TableCell(str(row.step), row.step),
        *(TableCell("–" if math.isnan(x) else f"{x:.3g}", x) for x in (spread.amax, median, ratio)), _share(below),
        TableCell(number, sqnr),
    ))  # fmt: skip


# ---- pictures


def _drawn(diagnosis: Diagnosed) -> list[str]:
    """Return the names of the recipes whose errors by cause are drawn, the recommended one first.

    Drawn are the recipes below 16 bits that have budget rows; if there is no such recipe, all that have budget rows.
    """
    budgeted = [name for name, budget in diagnosis.budgets.items() if budget.rows]
    recipes = diagnosis.sensitivity.recipes
    lows = [name for name, recipe in recipes.items() if not is_high(recipe) and name in budgeted]
    return sorted(lows, key=lambda name: name != diagnosis.low) or budgeted


def _causes(diagnosis: Diagnosed, name: str) -> Picture:
    """Return a picture of errors by cause in the recipe called `name`: a bar for each product of the worst layers."""
    from fpsim.analysis.studies.budget.figure import BAR, EDGES, GAP

    whole = diagnosis.budgets[name]
    layers = {layer for layer, _ in whole.ranking[:MOST_LAYERS]}
    rows = tuple(row for row in whole.rows if row.layer in layers)
    some = dataclasses.replace(whole, rows=rows)
    height = EDGES + BAR * len(rows) + GAP * len(layers)
    return _picture(some.plot(_axes(height)), f"causes-{len(name)}-{name}", f"Causes of the errors in {name}")


def _effects(diagnosis: Diagnosed) -> Picture:
    """Return a picture of the error that each product alone causes in the gradients; without a loss, in the outputs."""
    from fpsim.analysis.studies.sensitivity.figure import EDGES, ROOM

    layers = min(len(diagnosis.layers), MOST_LAYERS)
    return _picture(
        diagnosis.sensitivity.plot(_axes(EDGES + ROOM * layers)),
        "effects",
        f"The error that each product alone makes of the {judged_by(diagnosis)}",
    )


def _axes(height: float) -> Any:
    """Return the matplotlib axes of a new figure, `height` inches tall and as wide as the figures of other reports."""
    from fpsim.display.figure import WIDTH, figure_style
    from fpsim.display.optional import load

    with figure_style():
        figure = load("matplotlib.figure", "drawing").Figure(figsize=(WIDTH + 1.5, height), layout="constrained")
        return figure.subplots()


def _picture(ax: Axes, name: str, title: str) -> Picture:
    """Return the finished figure that contains the axes `ax` as an SVG picture.

    `name`: prefix of the ids in the SVG. `title`: heading of the picture."""
    return picture(ax.figure, "".join(sign if sign.isalnum() else "-" for sign in name), title, title)
