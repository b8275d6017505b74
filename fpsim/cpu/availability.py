"""A check of the instructions that this processor has, and the error for those that it lacks."""

from __future__ import annotations

from dataclasses import dataclass, field

from fpsim.cpu.instructions import INSTRUCTIONS, AnyInstruction
from fpsim.cpu.processor import described, missing_features
from fpsim.display.optional import DataFrame, frame
from fpsim.display.wording import listed


class CpuError(RuntimeError):
    """The error raised for an instruction that this processor does not have, or that LLVM does not compile."""


@dataclass(frozen=True)
class CpuAvailability:
    """The instructions of fp.cpu that this processor can run, and those that it cannot; true if it can run any.

    Attributes:
      present: names of the instructions that can be run; `name in available()` tests for one.
      missing: the other instructions as pairs (name, reason).
      about: facts on the processor and the version of LLVM, name -> text.
    """

    present: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    about: dict[str, str] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.present)

    def __contains__(self, name: object) -> bool:
        return name in self.present

    def __str__(self) -> str:
        count = len(self.present) + len(self.missing)
        lines = [f"{self.about.get('processor', 'This processor')} can run {len(self.present)} of {count} instructions"
                 f"{': ' + listed(self.present) if self.present else ''}."]  # fmt: skip
        return "\n".join([*lines, *missing_lines(self.missing)])

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame (instruction, unit, available, reason): a row for each instruction of fp.cpu."""
        reasons = dict(self.missing)
        return frame(
            [{"instruction": name, "unit": row.unit if hasattr(row, "unit") else "", "available": name in self.present,
              "reason": reasons.get(name, "")} for name, row in INSTRUCTIONS.items()
             if name in self.present or name in reasons]
        )  # fmt: skip


def missing_lines(missing: tuple[tuple[str, str], ...]) -> list[str]:
    """Return one sentence for each different reason, which lists the instructions that are missing for it.

    missing: pairs (name of an instruction, reason).
    """
    names: dict[str, list[str]] = {}
    for name, reason in missing:
        names.setdefault(reason, []).append(name)
    return [f"Not {listed(group)}: {reason}." for reason, group in names.items()]


def available() -> CpuAvailability:
    """Return the instructions that this processor can run, and the reasons why it cannot run others.

    If the processor has AMX, the process asks the operating system for permission to use tile registers.

    Returns:
      A CpuAvailability, which is false if no instruction can be run.

    Example:
      >>> import fpsim as fp
      >>> here = fp.cpu.available()
      >>> len(here.present) + len(here.missing) > 10
      True
      >>> if "VDPBF16PS" in here:
      ...     assert fp.cpu.dot_add([[0x3F80, 0]], [[0x4000, 0]], None, "x86_avx512_bf16_f32") == 0x40000000
    """
    reasons = {name: missing_features(row.features) for name, row in INSTRUCTIONS.items()}
    present = tuple(name for name, reason in reasons.items() if not reason)
    return CpuAvailability(present, tuple((name, reason) for name, reason in reasons.items() if reason), described())


def require(instruction: AnyInstruction) -> None:
    """Raise a CpuError with the reason if this processor cannot run the instruction."""
    reason = missing_features(instruction.features)
    if reason:
        raise CpuError(
            f"{instruction.name} cannot be run here: {reason}. fp.cpu.available() lists instructions that can be run, "
            "and fpsim emulates this one everywhere."
        )
