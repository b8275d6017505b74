"""The report on a training step on several processes, compared with one process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fpsim.arrays import Array
from fpsim.display.optional import DataFrame, frame


@dataclass(frozen=True)
class ProcessRow:
    """A comparison of the gradients or the weights of several processes with those of one process.

    Attributes:
      way: way of training: "ddp", "zero1", "fsdp2" or "fsdp2_bf16".
      ranks: number of processes.
      tensor: "gradients" or "weights".
      elements: number of elements that were compared.
      differing: number of elements that differ in a bit.
      largest: the largest difference / the largest magnitude in one process; 0 if no bit differs.
      reason: the order of additions that reproduces these gradients; for weights, what they were compared with.
    """

    way: str
    ranks: int
    tensor: str
    elements: int
    differing: int
    largest: float
    reason: str


def row_of(way: str, ranks: int, tensor: str, got: Array, wanted: Array, reason: str) -> ProcessRow:
    """Compare two flat float32 arrays bit by bit, and return the row of a ProcessesReport; all NaNs count as equal.

    way: name of the way of training. ranks: number of processes. tensor: "gradients" or "weights". got, wanted:
    elements computed by several processes, and by one. reason: text that the row stores (see `ProcessRow.reason`).

    Example:
      >>> import numpy as np
      >>> from fpsim.analysis.systems.processes.report import row_of
      >>> row_of("ddp", 2, "weights", np.float32([1, 2]), np.float32([1, 4]), "").largest
      0.5
    """
    unlike = (got.view(np.uint32) != wanted.view(np.uint32)) & ~(np.isnan(got) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        difference = np.abs(got[unlike].astype(np.float64) - wanted[unlike]).max(initial=0.0)
        largest = float(difference / np.abs(wanted.astype(np.float64)).max(initial=0.0)) if unlike.any() else 0.0
    return ProcessRow(way, ranks, tensor, got.size, int(unlike.sum()), largest, reason)


@dataclass(frozen=True)
class ProcessesReport:
    """The report of `fp.analysis.processes`: two rows for each way of training (such as DDP) and number of ranks.

    One row compares the gradients with those of one process, the other the weights.

    Attributes:
      rows: a `ProcessRow` for each way of training, number of ranks, and gradients or weights.
      backend: torch's backend between the processes: "gloo" or "nccl".
      torch: version of torch, on which the orders of additions depend.
    """

    rows: tuple[ProcessRow, ...]
    backend: str
    torch: str

    def __str__(self) -> str:
        """Return a text: a heading, and a line for each of `rows`."""
        lines = [f"A training step on several processes, compared with one (torch {self.torch}, {self.backend}):"]
        for row in self.rows:
            bits = "all bits are equal" if not row.differing else (
                f"{row.differing} of {row.elements} elements differ, by up to {row.largest:.1e} of the largest"
            )  # fmt: skip
            lines.append(f"{row.way:11} {row.ranks} ranks  {row.tensor:10} {bits}; {row.reason}")
        return "\n".join(lines)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each ProcessRow, a column for each of its fields."""
        return frame([row.__dict__ for row in self.rows])
