"""Reports of `fp.cpu.validate`: a row for each instruction and kind of inputs, as sentences, a table and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fpsim.cpu.availability import missing_lines
from fpsim.display.optional import DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import listed, plural
from fpsim.files import path_of, write_whole

COLUMNS = ("instruction", "emulation", "inputs", "compared", "differing", "other_nans", "first", "error")


@dataclass(frozen=True)
class InstructionRow:
    """The comparison of an instruction with the emulator for one kind of inputs.

    Attributes:
      instruction, emulation: name of the instruction, and the computation of fpsim that emulates it, as text.
      inputs: kind of the inputs, such as "any bits" or "near overflow" (docs/cpu.md).
      compared, differing: numbers of results that were compared, and that differ (any two NaNs are equal).
      other_nans: number of NaNs with another payload than the emulator's.
      first: the first difference as text; "" if there is none.
      rivals: names of other arithmetics, such as other roundings or units, whose results equal the processor's on these
        inputs.
      others: number of other arithmetics that were tried.
      error: why nothing was compared; "" if it was.
    """

    instruction: str
    emulation: str
    inputs: str
    compared: int = 0
    differing: int = 0
    other_nans: int = 0
    first: str = ""
    rivals: tuple[str, ...] = ()
    others: int = 0
    error: str = ""

    @property
    def equal(self) -> bool:
        """True if results were compared and all are equal bit by bit, except for payloads of NaNs."""
        return not self.error and self.compared > 0 and not self.differing


@dataclass(frozen=True)
class CpuReport:
    """The comparison of a processor's instructions with the emulator.

    Attributes:
      rows: an InstructionRow for each instruction and kind of inputs.
      missing: instructions that were not run, as pairs (name, reason).
      about: facts on the processor, versions, and the date, name -> text.
      seconds: duration of the comparison.
    """

    rows: tuple[InstructionRow, ...]
    missing: tuple[tuple[str, str], ...] = ()
    about: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if there are rows, and results of each were compared and are equal, except for payloads of NaNs."""
        return bool(self.rows) and all(row.equal for row in self.rows)

    def undecided(self, instruction: str) -> list[str]:
        """List the names of rivals whose results equal the processor's on all inputs of the report.

        A rival is an arithmetic other than the emulation, such as another rounding. The inputs do not show whether the
        processor computes a listed rival or the emulation. instruction: name of the instruction.
        """
        sets = [set(row.rivals) for row in self.rows if row.instruction == instruction and not row.error]
        return sorted(set.intersection(*sets)) if sets else []

    def sentences(self) -> list[str]:
        """Return a sentence for each instruction that was compared, then one for each reason in `missing`."""
        names = dict.fromkeys(row.instruction for row in self.rows)
        return [*map(self._sentence, names), *missing_lines(self.missing)]

    def _sentence(self, name: str) -> str:
        """Return the sentence on the instruction `name`: how many results differ from its emulation.

        It states the first difference. If nothing differs, it says how many rival arithmetics differ from the
        processor, and names those that do not.
        """
        rows = [row for row in self.rows if row.instruction == name]
        differing, compared = sum(row.differing for row in rows), sum(row.compared for row in rows)
        text = f"{name}: {differing:,} of {compared:,} results differ from {rows[0].emulation}"
        worst = next((row for row in rows if row.differing), None)
        errors = dict.fromkeys(row.error for row in rows if row.error)
        if worst is not None:
            text += f"; the first on {worst.inputs}: {worst.first}"
        elif compared and (others := max(row.others for row in rows)):
            same = self.undecided(name)
            text += f"; those of {others - len(same)} of {plural(others, 'rival')} do"
            text += f" (not those of {listed(same)})" if same else ""
        return ". ".join([text, *errors]) + "."

    def __str__(self) -> str:
        head = ", ".join(f"{name} {value}" for name, value in self.about.items())
        count = len({row.instruction for row in self.rows})
        good = count - len({row.instruction for row in self.rows if not row.equal})
        end = f"{good} of {plural(count, 'instruction')} equal in every bit, in {self.seconds:.1f} s."
        return "\n".join([f"fpsim compared with this processor: {head}", "", *self.sentences(), "", end])

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks: a row for each instruction and kind of inputs."""
        rows = ([str(asdict(row)[column]) for column in COLUMNS] for row in self.rows)
        return html_table(COLUMNS, rows)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with the fields of InstructionRow and `equal`: a row for each of `rows`."""
        return frame([asdict(row) | {"equal": row.equal} for row in self.rows])

    def save(self, path: str | Path) -> None:
        """Write the report to a JSON file, whole or not at all.

        Example:
          >>> import tempfile
          >>> from fpsim.cpu.report import CpuReport, InstructionRow
          >>> file = tempfile.mkdtemp() + "/report.json"
          >>> CpuReport((InstructionRow("VADDPH", "fp.add in FP16", "any bits", compared=4),)).save(file)
          >>> CpuReport.load(file).ok
          True
        """
        write_whole(path, json.dumps(asdict(self) | {"ok": self.ok, "sentences": self.sentences()}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> CpuReport:
        """Load a report that `save` wrote.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file does not hold a CpuReport.
        """
        try:
            read = json.loads(path_of(path).read_text(encoding="utf-8"))
            rows = tuple(InstructionRow(**row | {"rivals": tuple(row["rivals"])}) for row in read["rows"])
            missing = tuple((name, reason) for name, reason in read["missing"])
            return cls(rows, missing, read["about"], read["seconds"])
        except (ValueError, KeyError, TypeError) as problem:
            raise ValueError(
                f"{path} is not a report that CpuReport.save wrote. Run fp.cpu.validate again."
            ) from problem
