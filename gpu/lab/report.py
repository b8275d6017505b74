"""Reports of validations: comparisons of bits, as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.casts.cast import decode
from fpsim.display.wording import plural
from fpsim.files import write_whole
from fpsim.formats.named import format as find_format
from fpsim.gpu.lab.bench_report import Speed, aligned, outcome, plain, reading, speed_of
from fpsim.gpu.lab.bench_report import table as speed_table

Words = npt.NDArray[Any]


@dataclass(frozen=True)
class ValidationRow:
    """One comparison of bits from the GPU with bits from the CPU, or the error that prevented it.

    Attributes:
      part, what, inputs: the validation's part, the compared call, and the name of the inputs.
      compared, differing: numbers of compared and of differing elements (a NaN equals any NaN).
      other_nans: number of NaNs with another payload.
      first: the first difference as text; "" if there is none.
      model: the model of the library that fits best, as text; "" for comparisons without models.
      rivals: number of other models that fit equally well.
      expected: True if the model is the predicted one.
      error: why nothing was compared, or "".
      note: further remarks, such as the fields of an algorithm.
      others: number of other models that were tried; all but the rivals predict other bits for these inputs.
    """

    part: str
    what: str
    inputs: str
    compared: int = 0
    differing: int = 0
    other_nans: int = 0
    first: str = ""
    model: str = ""
    rivals: int = 0
    expected: bool = True
    error: str = ""
    note: str = ""
    others: int = 0

    @property
    def equal(self) -> bool:
        """True if elements were compared and all bits are equal."""
        return not self.error and self.compared > 0 and not self.differing


class WordDifference(NamedTuple):
    """The difference between two arrays of bit patterns.

    Attributes:
      compared, differing: numbers of compared and of differing elements.
      other_nans: number of NaNs with another payload, which count as equal.
      first: the first difference as text; "" if there is none.
    """

    compared: int
    differing: int
    other_nans: int
    first: str


def difference(got: Words, want: Words, fmt: str) -> WordDifference:
    """Return the difference between two arrays of codes; NaN equals NaN, but NaNs with other payloads are counted.

    Args:
      got, want: codes from the hardware and from the emulator, arrays of one shape and dtype.
      fmt: name of their format; "integer" to compare integers.

    Raises:
      ValueError: shapes or dtypes differ.

    Example:
      >>> import numpy as np
      >>> from fpsim.gpu.lab.report import difference
      >>> difference(np.uint8([0x38, 0x7F]), np.uint8([0x39, 0xFF]), "e4m3")
      WordDifference(compared=2, differing=1, other_nans=1, first='(0,): hardware 0x38 (1.0), emulator 0x39 (1.125)')
    """
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        raise ValueError(
            f"words to compare must have one shape and dtype; got {got.dtype} {got.shape} from the hardware, "
            f"{want.dtype} {want.shape} from the emulator."
        )
    places = np.argwhere(got != want)
    if not len(places):
        return WordDifference(got.size, 0, 0, "")
    index = tuple(places.T)
    values = [_values(words[index], fmt) for words in (got, want)]
    real = ~(np.isnan(values[0]) & np.isnan(values[1]))
    if not real.any():
        return WordDifference(got.size, 0, len(places), "")
    at = int(np.argmax(real))
    digits = 2 * got.dtype.itemsize
    shown = [f"0x{int(words[index][at]):0{digits}X} ({float(value[at])})"
             for words, value in zip((got, want), values, strict=True)]  # fmt: skip
    where = tuple(int(i) for i in places[at])
    first = f"{where}: hardware {shown[0]}, emulator {shown[1]}"
    return WordDifference(got.size, int(real.sum()), int((~real).sum()), first)


def _values(words: Words, fmt: str) -> npt.NDArray[np.float64]:
    """Return `words`, codes of the format `fmt`, as float64 values; or integers as float64 if `fmt` is "integer"."""
    if fmt == "integer":
        return words.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(decode(words, find_format(fmt), np.float64))


@dataclass(frozen=True)
class ValidationReport:
    """The report of a validation: all comparisons, and the machine.

    Attributes:
      rows: the comparisons.
      about: name -> text on GPU, driver, versions of CUDA, torch, Triton and fpsim, and date.
      seconds: duration of the validation.
      speeds: speeds measured in a short benchmark in the same run.
    """

    rows: tuple[ValidationRow, ...]
    about: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    speeds: tuple[Speed, ...] = ()

    def __str__(self) -> str:
        head = ", ".join(f"{name} {value}" for name, value in self.about.items())
        groups: dict[tuple[str, str], list[ValidationRow]] = {}  # a row of the table has all rows of a part and call
        for row in self.rows:
            groups.setdefault((row.part, row.what), []).append(row)
        table = aligned([COLUMNS, *map(_cells, groups.values())], 160)
        lines = [f"fpsim compared with the GPU: {head}", "", *table, ""]
        for row in self.rows:
            if row.error:
                lines.append(f"ERROR   {row.part} | {row.what} | {row.inputs}: {row.error}")
            elif row.differing:
                lines.append(f"DIFFERS {row.part} | {row.what} | {row.inputs}: first at {row.first}")
        speeds = ["", *speed_table(self.speeds)] if self.speeds else []
        return "\n".join([*lines, *speeds, "", self.summary()])

    def summary(self) -> str:
        """Return text with a line on the outcome of each part of the validation, and one on all comparisons."""
        lines = []
        for part in dict.fromkeys(row.part for row in self.rows):
            rows = [row for row in self.rows if row.part == part]
            differing = sum(row.differing for row in rows)
            compared = sum(row.compared for row in rows)
            equal = sum(row.equal for row in rows)
            errors = sum(bool(row.error) for row in rows)
            surprises = sum(row.equal and not row.expected for row in rows)
            lines.append(
                f"{part}: {equal} of {len(rows)} comparisons equal in every bit"
                + (f" ({surprises} by another model than expected)" if surprises else "")
                + f"; {differing} of {compared} elements differ; {plural(errors, 'error')}"
            )
        if self.speeds:
            lines.append(f"speed: {outcome(self.speeds)}")
        good = sum(row.equal for row in self.rows)
        return "\n".join([*lines, f"{good} of {len(self.rows)} comparisons equal, in {self.seconds:.0f} s"])

    @property
    def all_equal(self) -> bool:
        """True if every comparison was made and every bit is equal."""
        return bool(self.rows) and all(row.equal for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as nested dicts and lists of str, numbers and bools, for JSON."""
        return {"about": self.about, "seconds": round(self.seconds, 1), "summary": self.summary().splitlines(),
                "rows": [asdict(row) | {"equal": row.compared - row.differing} for row in self.rows],
                "speeds": [plain(row) for row in self.speeds]}  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the report as a JSON file.

        Example:
          >>> import tempfile
          >>> from fpsim.gpu.lab.report import ValidationReport, ValidationRow
          >>> file = tempfile.mkdtemp() + "/report.json"
          >>> ValidationReport((ValidationRow("casts", "encode", "all", compared=4),)).save(file)
          >>> ValidationReport.load(file).all_equal
          True
        """
        write_whole(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> ValidationReport:
        """Return the report in a file that `save` wrote; raise a ValueError if the file holds something else."""
        with reading(path, "ValidationReport") as read:
            rows = tuple(row_of(row) for row in read["rows"])
            return cls(rows, dict(read["about"]), read["seconds"], tuple(map(speed_of, read.get("speeds", ()))))


def row_of(plain: dict[str, Any]) -> ValidationRow:
    """Return a comparison from `plain`, its dict in a report's JSON: the attributes of ValidationRow, and "equal"."""
    return ValidationRow(**{name: value for name, value in plain.items() if name != "equal"})


COLUMNS = ("part", "what", "inputs", "compared", "differing", "verdict", "model")


def _cells(rows: list[ValidationRow]) -> tuple[str, ...]:
    """Return the table's cells for the comparisons of one call with several sets of inputs, in the order of COLUMNS."""
    first, differing = rows[0], sum(row.differing for row in rows)
    errors = sum(bool(row.error) for row in rows)
    equal = sum(row.equal for row in rows)
    unequal = sum(bool(row.differing) for row in rows)
    verdict = "equal" if equal == len(rows) else f"{unequal} DIFFER" if unequal else ""
    verdict = ", ".join(filter(None, [verdict, plural(errors, "error") if errors else ""])) or "nothing compared"
    models = dict.fromkeys(row.model + ("" if row.expected else " (not expected)") for row in rows if row.model)
    rivals = min((row.rivals for row in rows if row.model), default=0)
    notes = dict.fromkeys(row.note for row in rows if row.note)
    others = min((row.others for row in rows if row.model), default=0)
    told = (
        [f"{others - rivals} of {others} other models differ for these inputs"] if others and equal == len(rows) else []
    )
    about = "; ".join([*models, *told, *list(notes)[:2]])
    inputs = first.inputs if len(rows) == 1 else f"{len(rows)} sets"
    return first.part, first.what, inputs, str(sum(row.compared for row in rows)), str(differing), verdict, about
