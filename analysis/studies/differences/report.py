"""The report of one model under two arithmetics: where their bits first differ, and how the difference grows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.studies.differences.growth import LayerDifference
from fpsim.analysis.studies.differences.outputs import OutputDifference
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import percent, plural
from fpsim.divergence.divergence import Divergence, matrix_divergence
from fpsim.errors import require_word

LISTED = 12  # products in the table of a notebook
WAYS = 3  # ways to add in the report of two runs whose bits are equal


@dataclass(frozen=True)
class ModelDivergence(Divergence):
    """The first difference between one model's runs under two arithmetics, and how the difference grows.

    Attributes:
      growth: the difference of every product that both runs computed in the same shape, in the order in which they ran.
      kl: the mean of KL(first || second) of the model's output as logits, in nats; None if it is not logits.
      coverage: a Coverage, the share of the model's weights and multiplications that was compared.

    The other attributes are those of a Divergence. `layer` and `product` name the first difference. `operand` is the
    name of the operand that differs, "" if it is the result. `element` is (row, column) of its first different element,
    with its `bits` (codes, as ints) and `values` in both runs. `count` elements of all `size` differ. `cause` and
    `explanation` are texts, and `names` are those of the runs. `trees` are the additions of both runs as trees, if
    known; `step` is None. If no bit differs, `cause` is "none", `layer` and `product` are "", and bool() is False.
    """

    growth: tuple[LayerDifference, ...] = field(default=(), repr=False)
    kl: float | None = None
    coverage: Coverage = field(default=NOTHING, repr=False)

    def __bool__(self) -> bool:
        """Return whether any bit differs."""
        return self.cause != "none"

    def to_frame(self, by: str = "element") -> DataFrame:
        """Return a pandas DataFrame: one row for the first element that differs, or a row for each product of `growth`.

        Args:
          by: "element" or "layer", the kind of rows.
        Raises:
          ValueError: by is another value.
        """
        require_word("by", by, ("element", "layer"))
        if by == "layer":
            return frame([dataclasses.asdict(row) for row in self.growth])
        table = super().to_frame()
        table["kl"] = self.kl
        return table

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw how the difference grows from product to product, and return the matplotlib axes. `ax`: the axes to draw
        into; None for new ones.
        """
        from fpsim.analysis.studies.differences.figure import growth_axes

        return growth_axes(self.growth, self.names, ax)

    def plot_trees(self, axes: Iterable[Axes] | None = None) -> list[Axes]:
        """Draw the additions by which each run computed the element that differs, as trees; return their axes.

        Args:
          axes: matplotlib Axes, one for each known tree; None for new figures.
        """
        from fpsim.schedules.trees.picture import tree_axes

        known = [(tree, name) for tree, name in zip(self.trees, self.names, strict=True) if tree is not None]
        targets = [None] * len(known) if axes is None else list(axes)[: len(known)] if not known else list(axes)
        return [
            tree_axes(tree, ax, f"{name}: {self.layer}, {self.product}")
            for (tree, name), ax in zip(known, targets, strict=True)
        ]

    def _repr_html_(self) -> str:
        """Return the explanation and a table of the first 12 products that differ as HTML for notebooks."""
        rows = [row for row in self.growth if row.differing][:LISTED]
        cells = ((row.layer, row.product, percent(row.differing), f"{row.relative:.2g}") for row in rows)
        table = html_table(("layer", "product", "elements that differ", "relative error"), cells)
        more = sum(row.differing > 0 for row in self.growth) - len(rows)
        rest = f"<p>and {plural(more, 'further product')}</p>" if more > 0 else ""
        return f"{super()._repr_html_()}{table}{rest}"


def no_difference(
    growth: tuple[LayerDifference, ...], names: tuple[str, str], kl: float | None, coverage: Coverage,
    ways: Mapping[str, int] = MappingProxyType({}), remarks: Iterable[str] = (),
) -> ModelDivergence:  # fmt: skip
    """Return the report of two runs whose bits are all equal; the sentences `remarks` are added to its explanation.

    `growth`: a row for each product. `names`: names of the two arithmetics. `kl`: KL divergence of the outputs in nats,
    or None. `coverage`: the share of the model that was compared. `ways`: sentences on how the two runs added, each
    with the number of products that were added so; the three most frequent are in the report.
    """
    size, noun = sum(row.size for row in growth), "output" if growth and growth[0].product == "output" else "product"
    lines = [
        f"No bit differs between {names[0]} and {names[1]}: {plural(len(growth), noun)} of {plural(size, 'element')}."
    ]
    common = sorted(ways.items(), key=lambda way: -way[1])[:WAYS]
    lines += [way if len(ways) == 1 else f"{plural(count, 'product')}: {way}" for way, count in common]
    lines += [f"Other products add in {plural(len(ways) - WAYS, 'further pair')} of ways."] if len(ways) > WAYS else []
    lines += [*remarks, *filter(None, [coverage.headline]), *coverage.sentences]
    return ModelDivergence(
        None, "", "", "", None, (0, 0), (math.nan, math.nan), None, 0, size, 0.0, "none", "\n".join(lines), names,
        growth=growth, kl=kl, coverage=coverage,
    )  # fmt: skip


def output_divergence(
    difference: OutputDifference, names: tuple[str, str], kl: float | None, coverage: Coverage
) -> ModelDivergence:  # fmt: skip
    """Return the report of two models in which a module returned different bits.

    `difference`: the first outputs that differ. `names`: names of the two arithmetics. `kl`: KL divergence of the
    outputs in nats, or None. `coverage`: the share of the model that was compared.
    """
    first, second = difference.first, difference.second
    assert first is not None
    assert second is not None
    name = first.module or "the model"
    shapes = first.values.shape, second.values.shape
    if shapes[0] != shapes[1]:
        text = f"The output of {name} has shape {shapes[0]} on {names[0]} and {shapes[1]} on {names[1]}."
        return ModelDivergence(
            None, name, "output", "", None, (0, 0), (math.nan, math.nan), None, 0, 0, math.nan, "order", text, names,
            growth=difference.growth, kl=kl, coverage=coverage,
        )  # fmt: skip
    after = difference.after
    before = f"Everything up to the output of {after} was equal" if after else "It is the first output"
    hidden = "torch.compile's graphs hide products, so that the outputs of modules that Python calls are compared."
    fmt = first.fmt if first.fmt == second.fmt else None
    place = matrix_divergence(name, first.values, second.values, names, f"{before}. {hidden}", fmt=fmt)
    return model_divergence(place, difference.growth, kl, coverage)


def model_divergence(
    first: Divergence, growth: tuple[LayerDifference, ...], kl: float | None, coverage: Coverage,
    remarks: Iterable[str] = (),
) -> ModelDivergence:  # fmt: skip
    """Return the report of two runs whose first difference is `first`; the sentences `remarks` are added to the
    report's explanation.

    `growth`: a row for each product or module output. `kl`: KL divergence of the outputs in nats, or None. `coverage`:
    the share of the model that was compared.
    """
    lines = [*filter(None, [coverage.headline]), first.explanation, *remarks, _growth_sentence(growth, kl)]
    fields = {field.name: getattr(first, field.name) for field in dataclasses.fields(Divergence)}
    fields["explanation"] = "\n".join([*lines, *coverage.sentences])
    return ModelDivergence(**fields, growth=growth, kl=kl, coverage=coverage)


def _growth_sentence(growth: tuple[LayerDifference, ...], kl: float | None) -> str:
    """Return a sentence saying how many products differ, and by how much the last forward product differs.

    The rows of `growth` may also be outputs of modules, which the sentence then counts. `kl`: KL divergence of the
    outputs in nats, which is added unless it is None.
    """
    count = sum(row.differing > 0 for row in growth)
    noun = "output" if growth and growth[0].product == "output" else "product"
    sentence = f"{count} of {plural(len(growth), noun)} {'differs' if count == 1 else 'differ'}"
    last = next((row for row in reversed(growth) if row.product in ("fprop", "output")), None)
    if last is not None:
        size = f"differs in {percent(last.differing)} of its elements, " + (
            "none of which is finite in both runs" if math.isnan(last.relative)
            else f"with a relative error of {last.relative:.2g}"
        )  # fmt: skip
        forward = "output" if noun == "output" else "forward product"
        sentence += f"; the last {forward}, {last.layer}, {size if last.differing else 'is equal'}"
    return f"{sentence}." if kl is None else f"{sentence}. KL of the output: {kl:.2g} nats."
