"""Where one model under two arithmetics first differs, and how far from there on."""

from __future__ import annotations

import dataclasses
import html
import math
from dataclasses import dataclass, field
from typing import Any

from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.studies.differences.growth import LayerDifference
from fpsim.analysis.studies.differences.outputs import OutputDifference
from fpsim.display.optional import frame
from fpsim.display.wording import percent, plural
from fpsim.divergence.divergence import Divergence, matrix_divergence
from fpsim.errors import require_word

LISTED = 12  # products that the table of a notebook lists


@dataclass(frozen=True)
class ModelDivergence(Divergence):
    """The first difference of one model under two arithmetics, and how it grows.

    Attributes:
      growth: every product that both runs computed in one shape, in their order.
      kl: the mean of KL(first || second) of the model's output as logits, in nats; None where it is none.
      coverage: how much of the model was compared.

    Where no bit differs, `cause` is "none", `layer` and `product` are "", and bool() is False: `if found:` asks
    whether there is a difference.

    And those of a Divergence: layer, product, operand, element, bits, values, count, size, cause, explanation, names,
    trees; `step` is None.
    """

    growth: tuple[LayerDifference, ...] = field(default=(), repr=False)
    kl: float | None = None
    coverage: Coverage = field(default=NOTHING, repr=False)

    def __bool__(self) -> bool:
        """Whether a bit differs."""
        return self.cause != "none"

    def to_frame(self, by: str = "element") -> Any:
        """A pandas frame: one row, the first element; or with by="layer" a row for each product of `growth`."""
        require_word("by", by, ("element", "layer"))
        if by == "layer":
            return frame([dataclasses.asdict(row) for row in self.growth])
        found = super().to_frame()
        found["kl"] = self.kl
        return found

    def plot(self, ax: Any = None) -> Any:
        """Draw how the difference grows from product to product; returns the matplotlib axes."""
        from fpsim.analysis.studies.differences.figure import growth_axes

        return growth_axes(self, ax)

    def plot_trees(self, axes: Any = None) -> Any:
        """Draw by which additions either run made the element; returns the axes, one for each tree that is known.

        Args:
          axes: as many matplotlib Axes; None for figures of their own.
        """
        from fpsim.schedules.trees.picture import tree_axes

        known = [(tree, name) for tree, name in zip(self.trees, self.names, strict=True) if tree is not None]
        targets = [None] * len(known) if axes is None else list(axes)[: len(known)] if not known else list(axes)
        return [
            tree_axes(tree, ax, f"{name}: {self.layer}, {self.product}")
            for (tree, name), ax in zip(known, targets, strict=True)
        ]

    def _repr_html_(self) -> str:
        """The explanation, and the first products that differ."""
        rows = [row for row in self.growth if row.differing][:LISTED]
        head = "".join(f"<th>{name}</th>" for name in ("layer", "product", "elements that differ", "relative norm"))
        cells = "".join(
            f"<tr><td>{html.escape(row.layer)}</td><td>{row.product}</td><td>{percent(row.differing)}</td>"
            f"<td>{row.relative:.2g}</td></tr>"
            for row in rows
        )
        more = sum(row.differing > 0 for row in self.growth) - len(rows)
        rest = f"<p>and {plural(more, 'further product')}</p>" if more > 0 else ""
        return f"{super()._repr_html_()}<table><tr>{head}</tr>{cells}</table>{rest}"


def no_difference(
    growth: tuple[LayerDifference, ...], names: tuple[str, str], kl: float | None, coverage: Coverage
) -> ModelDivergence:  # fmt: skip
    """Return the report of two runs all of whose bits are equal."""
    size, noun = sum(row.size for row in growth), "output" if growth and growth[0].product == "output" else "product"
    lines = [
        f"No bit differs between {names[0]} and {names[1]}: {plural(len(growth), noun)} of {plural(size, 'element')}."
    ]
    lines += [*filter(None, [coverage.headline]), *coverage.sentences]
    return ModelDivergence(
        None, "", "", "", None, (0, 0), (math.nan, math.nan), None, 0, size, 0.0, "none", "\n".join(lines), names,
        growth=growth, kl=kl, coverage=coverage,
    )  # fmt: skip


def output_divergence(
    found: OutputDifference, names: tuple[str, str], kl: float | None, coverage: Coverage
) -> ModelDivergence:  # fmt: skip
    """Return the report of two models whose modules give other bits."""
    first, second = found.first, found.second
    assert first is not None
    assert second is not None
    name = first.module or "the model"
    shapes = first.values.shape, second.values.shape
    if shapes[0] != shapes[1]:
        text = f"{name} gives {shapes[0]} on {names[0]} and {shapes[1]} on {names[1]}."
        return ModelDivergence(
            None, name, "output", "", None, (0, 0), (math.nan, math.nan), None, 0, 0, math.nan, "order", text, names,
            growth=found.growth, kl=kl, coverage=coverage,
        )  # fmt: skip
    before = f"Everything up to the output of {found.after} was equal" if found.after else "It is the first output"
    hidden = "torch.compile's graphs hide products, so modules are compared by what they give, where Python calls them."
    fmt = first.fmt if first.fmt == second.fmt else None
    place = matrix_divergence(name, first.values, second.values, names, f"{before}. {hidden}", fmt=fmt)
    fields = {each.name: getattr(place, each.name) for each in dataclasses.fields(Divergence)}
    lines = [*filter(None, [coverage.headline]), place.explanation, growth_sentence(found.growth, kl)]
    text = "\n".join([*lines, *coverage.sentences])
    return ModelDivergence(**{**fields, "explanation": text}, growth=found.growth, kl=kl, coverage=coverage)


def growth_sentence(growth: tuple[LayerDifference, ...], kl: float | None) -> str:
    """How far the runs are apart in the end."""
    apart = sum(row.differing > 0 for row in growth)
    noun = "output" if growth and growth[0].product == "output" else "product"
    said = f"{apart} of {plural(len(growth), noun)} {'differs' if apart == 1 else 'differ'}"
    last = next((row for row in reversed(growth) if row.product in ("fprop", "output")), None)
    if last is not None:
        share = f"in {percent(last.differing)} of its elements, by {last.relative:.2g} of its norm"
        said += f"; the last one forwards, {last.layer}, {share if last.differing else 'does not'}"
    return f"{said}." if kl is None else f"{said}. KL of the output: {kl:.2g} nats."
