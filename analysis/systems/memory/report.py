"""A ledger: bytes of training by kind of tensor, of the whole model and on each rank, as a table, a plot and a file."""

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
      kind: kind of tensor: "parameters", "copies", "gradients", "masters", "moments", "scales", "activations" or
        "activation gradients".
      part: role of the tensor, such as "first moment", or module and tensor of an activation.
      format: name of the format of the elements.
      elements: number of elements, of the whole model; for activations and their gradients, of a rank's micro-batch.
      bytes: bytes of all these elements, with padding; for activation gradients, the bytes by which the peak of the
        backward pass exceeds the activations.
      rank_bytes: bytes that one rank holds.
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
      rows: a LedgerRow for each part of the training state and each activation.
      recipe: name of the recipe.
      parameters: number of parameters.
      ranks, zero: number of ranks among which ZeRO divides the state, and the stage of ZeRO, 0 to 3.
      tokens, micro_batches: tokens of a training step on one rank, and the number of micro-batches that divide them.
      checkpointing: share of the blocks whose activations are kept.
      recomputed: number of blocks of which the backward pass recomputes something.
      recompute_cost: multiplications that run once more / multiplications of a training step (forward and backward).
      notes: sentences that the text of the report adds after the bytes by kind; () for none.
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
        """Bytes of the whole model's training state, not divided among ranks, plus those of one rank's activations."""
        return sum(row.bytes for row in self.rows)

    @property
    def rank_bytes(self) -> int:
        """Bytes of everything that one rank holds."""
        return sum(row.rank_bytes for row in self.rows)

    def of(self, kind: str) -> int:
        """Return the bytes of one kind of tensor (see `LedgerRow.kind`), such as "moments", that one rank holds.

        Raises:
          ValueError: there is no such kind.
        """
        require_word("kind", kind, KINDS)
        return sum(row.rank_bytes for row in self.rows if row.kind == kind)

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes of each kind of tensor that one rank holds: kind -> bytes, without kinds of 0 bytes."""
        return {kind: count for kind in KINDS if (count := self.of(kind))}

    def plot(self, ax: Axes | None = None, others: Sequence[Ledger] = ()) -> Axes:
        """Draw the bytes of one rank as a bar stacked by kind of tensor, with bars of other ledgers below.

        Args:
          ax: matplotlib axes to draw on; None makes new ones.
          others: other ledgers, such as those of further stages of ZeRO.
        Returns:
          The matplotlib axes.
        """
        from fpsim.analysis.systems.memory.figure import ledger_axes

        return ledger_axes([self, *others], ax)

    def __str__(self) -> str:
        """Return a text: recipe, parameters and bytes of one rank, a line for each kind of tensor, and the notes."""
        head = f"{self.recipe or 'a recipe without a name'}, {plural(self.parameters, 'parameter')}: "
        head += (
            f"{bytes_in_words(self.rank_bytes)} on {'each of ' if self.ranks > 1 else ''}{plural(self.ranks, 'rank')}"
        )
        head += f" with ZeRO-{self.zero}" if self.zero else ""
        width = max(12, *map(len, self.by_kind))
        lines = [head, *(f"  {kind:<{width}} {bytes_in_words(count):>10}" for kind, count in self.by_kind.items())]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a heading, a table of the bytes of one rank by kind of tensor, and the notes."""
        rows = ([kind, bytes_in_words(count)] for kind, count in self.by_kind.items())
        title = html.escape(str(self).splitlines()[0])
        notes = html_paragraphs(self.notes)
        return f"<p>{title}</p>{html_table(['kind', 'bytes of a rank'], rows)}{notes}"
