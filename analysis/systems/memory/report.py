"""A ledger: bytes of training by kind, in all and on each rank, as a table, a figure and a file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from fpsim.analysis.systems.saved_report import SavedReport
from fpsim.display.optional import Axes
from fpsim.display.tables import html_paragraphs, html_table
from fpsim.display.wording import bytes_in_words, plural
from fpsim.errors import require_word

KINDS = ("parameters", "copies", "gradients", "masters", "moments", "scales", "activations", "activation gradients")


@dataclass(frozen=True)
class LedgerRow:
    """The bytes of one part of the training state or of the activations.

    Attributes:
      kind: one of KINDS.
      part: its role, such as "first moment", or the module and tensor of an activation.
      format: format of the elements.
      elements: number of values of the whole model; for activations and their gradients, of a rank's micro-batch.
      bytes: bytes of all these values; for activation gradients, of the peak of the backward pass beyond activations.
      rank_bytes: bytes of the values that one rank holds.
    """

    kind: str
    part: str
    format: str
    elements: int
    bytes: int
    rank_bytes: int


@dataclass(frozen=True)
class Ledger(SavedReport):
    """The bytes that training one model by one recipe needs, by kind.

    Attributes:
      rows: a LedgerRow for each part.
      recipe: name of the recipe.
      parameters: number of parameters.
      ranks, zero: number of ranks that share the state, and the stage of ZeRO.
      tokens, micro_batches: tokens of a rank's step, and the number of micro-batches that they are cut into.
      checkpointing: share of the blocks whose activations are kept.
      recomputed: number of blocks whose forward pass runs once more in the backward pass.
      recompute_cost: multiplications that run once more, over those of a step (forward and backward).
    """

    KIND = "fpsim ledger"
    ROW = LedgerRow

    rows: tuple[LedgerRow, ...]
    recipe: str
    parameters: int
    ranks: int = 1
    zero: int = 0
    tokens: int = 0
    micro_batches: int = 1
    checkpointing: float = 1.0
    recomputed: int = 0
    recompute_cost: float = 0.0
    notes: tuple[str, ...] = field(default=(), repr=False)

    @property
    def bytes(self) -> int:
        """Bytes of one unsharded copy of everything."""
        return sum(row.bytes for row in self.rows)

    @property
    def rank_bytes(self) -> int:
        """Bytes that one rank holds."""
        return sum(row.rank_bytes for row in self.rows)

    def of(self, kind: str) -> int:
        """Return the bytes of a kind that one rank holds.

        Raises:
          ValueError: there is no such kind.
        """
        require_word("kind", kind, KINDS)
        return sum(row.rank_bytes for row in self.rows if row.kind == kind)

    @property
    def by_kind(self) -> dict[str, int]:
        """Kind -> bytes that one rank holds; kinds without any are left out."""
        return {kind: count for kind in KINDS if (count := self.of(kind))}

    def plot(self, ax: Axes | None = None, others: Sequence[Ledger] = ()) -> Axes:
        """Draw the bytes of a rank as a bar stacked by kind, with those of other ledgers below it.

        Args:
          ax: matplotlib Axes; None makes a figure.
          others: other ledgers, such as those of further stages of ZeRO.
        Returns:
          The Axes.
        """
        from fpsim.analysis.systems.memory.figure import ledger_axes

        return ledger_axes([self, *others], ax)

    def __str__(self) -> str:
        """Return a text with the bytes of one rank by kind."""
        head = f"{self.recipe or 'a recipe without a name'}, {plural(self.parameters, 'parameter')}: "
        head += f"{bytes_in_words(self.rank_bytes)} on each of {plural(self.ranks, 'rank')}"
        head += f" with ZeRO-{self.zero}" if self.zero else ""
        width = max(12, *map(len, self.by_kind))
        lines = [head, *(f"  {kind:<{width}} {bytes_in_words(count):>10}" for kind, count in self.by_kind.items())]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        """Return the bytes of one rank by kind as an HTML table."""
        rows = ([kind, bytes_in_words(count)] for kind, count in self.by_kind.items())
        title = html.escape(str(self).splitlines()[0])
        notes = html_paragraphs(self.notes)
        return f"<p>{title}</p>{html_table(['kind', 'bytes of a rank'], rows)}{notes}"
