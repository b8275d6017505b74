"""Where one model under two arithmetics first differs, and how far from there on."""

from __future__ import annotations

import dataclasses
import html
from dataclasses import dataclass, field
from typing import Any

from fpsim.analysis.measures.divergence import Divergence
from fpsim.analysis.studies.differences.growth import LayerDifference
from fpsim.display.optional import frame
from fpsim.display.wording import percent, plural
from fpsim.errors import require_word

LISTED = 12  # products that the table of a notebook lists


@dataclass(frozen=True)
class ModelDivergence(Divergence):
    """The first difference of one model under two arithmetics, and how it grows.

    Attributes:
      growth: every product that both runs computed in one shape, in their order.
      kl: the mean of KL(first || second) of the model's output as logits, in nats; None where it is none.

    And those of a Divergence: layer, product, operand, element, bits, values, count, size, cause, explanation, names,
    trees; `step` is None.
    """

    growth: tuple[LayerDifference, ...] = field(default=(), repr=False)
    kl: float | None = None

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
        targets = [None] * len(known) if axes is None else list(axes)
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


def growth_sentence(growth: tuple[LayerDifference, ...], kl: float | None) -> str:
    """How far the runs are apart in the end."""
    apart = sum(row.differing > 0 for row in growth)
    said = f"{apart} of {plural(len(growth), 'product')} {'differs' if apart == 1 else 'differ'}"
    last = next((row for row in reversed(growth) if row.product == "fprop"), None)
    if last is not None:
        share = f"in {percent(last.differing)} of its elements, by {last.relative:.2g} of its norm"
        said += f"; the last one forwards, {last.layer}, {share if last.differing else 'does not'}"
    return f"{said}." if kl is None else f"{said}. KL of the output: {kl:.2g} nats."
