"""Reports of training runs that are compared by their digests, as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fpsim.files import path_of, write_whole
from fpsim.gpu.lab.bench_report import aligned

VERSION = 1


@dataclass(frozen=True)
class TrainingRow:
    """One training run, compared with the same run emulated on the CPU.

    A digest is a hash of all weights, the optimizer's moments and the losses after a step.

    Attributes:
      case: the recipe and the width, such as "DEEPSEEK_V3, width 128".
      backend: "emulated" (the run that others are compared with), "gpu", "hardware", or "torch BF16" and "torch FP8",
        torch's own trainers, which are compared by their losses alone.
      steps: the number of steps that were taken.
      equal: whether all digests were equal; None if they are not compared.
      loss: mean loss of the last 20 steps, in nats; None before the first step.
      milliseconds: median time of a step; None before the first step.
      megabytes: largest GPU memory that torch had allocated, in MB; 0 if it allocated none.
      kept: bytes of parameters, masters, gradients, moments and scales, by `fp.analysis.ledger`; 0 for torch's own
        trainers.
      digest: digest after the last step.
      digests: digests after each step.
      difference: the first difference with its cause, as text; "" if there is none.
      error: why the run ended early, or "".
    """

    case: str
    backend: str
    steps: int = 0
    equal: bool | None = None
    loss: float | None = None
    milliseconds: float | None = None
    megabytes: float = 0.0
    kept: int = 0
    digest: str = ""
    digests: tuple[str, ...] = ()
    difference: str = ""
    error: str = ""


def training_row(fields: dict[str, Any]) -> TrainingRow:
    """Return a run from `fields`, the dict of its attributes in a report's JSON, whose digests are a list."""
    return TrainingRow(**{**fields, "digests": tuple(fields["digests"])})


@dataclass(frozen=True)
class TrainingReport:
    """The report of compared training runs.

    Attributes:
      rows: the runs.
      about: name -> text on the GPU, versions and date.
      seconds: duration of all runs together.
    """

    rows: tuple[TrainingRow, ...]
    about: dict[str, str]
    seconds: float

    @property
    def all_equal(self) -> bool:
        """True if a run was compared with the emulated one, all digests (hashes) are equal, and no run failed."""
        compared = [row for row in self.rows if row.equal is not None]
        return bool(compared) and all(row.equal for row in compared) and not any(row.error for row in self.rows)

    def save(self, path: str | Path) -> None:
        """Write the report as a JSON file; the file is complete or not there at all."""
        fields = {"version": VERSION, "about": self.about, "seconds": self.seconds}
        write_whole(path_of(path), json.dumps({**fields, "rows": [asdict(row) for row in self.rows]}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> TrainingReport:
        """Return the report in a file that `save` wrote.

        Raises:
          ValueError: the file cannot be read or holds something else.
        """
        file = path_of(path)
        try:
            fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            rows = tuple(training_row(row) for row in fields["rows"])
            return cls(rows, fields["about"], fields["seconds"])
        except (OSError, ValueError, KeyError, TypeError) as reason:
            raise ValueError(f"path must be a report of `python -m fpsim.gpu train`; got {file}: {reason}.") from None

    def __str__(self) -> str:
        words = [f"{name}: {value}" for name, value in self.about.items()]
        head = ("run", "backend", "steps", "digest", "loss", "ms a step", "of emulated", "kept MB", "GPU MB")
        table = [head, *(self._cells(row) for row in self.rows)]
        lines = [", ".join(words), *aligned(table)]
        for row in self.rows:
            if row.difference or row.error:
                lines.append(f"\n{row.case}, {row.backend}: {row.error or row.difference}")
        compared = [row for row in self.rows if row.equal is not None]
        equal = sum(bool(row.equal) for row in compared)
        lines.append(
            f"\n{equal} of {len(compared)} compared runs have the digest of the emulator; {self.seconds:.0f} s."
        )
        return "\n".join(lines)

    def _cells(self, row: TrainingRow) -> tuple[str, ...]:
        """Return the table's cells for one run, with its time also relative to the emulated run of the same case."""
        base = next((other for other in self.rows if (other.case, other.backend) == (row.case, "emulated")), None)
        ratio = "" if row.milliseconds is None or base is None or not base.milliseconds else (
            f"{row.milliseconds / base.milliseconds:.2f}")  # fmt: skip
        said = "failed" if row.error else {None: "-", True: "equal", False: "differs"}[row.equal]
        return (
            row.case, row.backend, str(row.steps), said, "-" if row.loss is None else f"{row.loss:.4f}",
            "-" if row.milliseconds is None else f"{row.milliseconds:.1f}", ratio,
            f"{row.kept / 1e6:.1f}" if row.kept else "-", f"{row.megabytes:.0f}" if row.megabytes else "-",
        )  # fmt: skip
