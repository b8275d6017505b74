"""Reports of quantizer checks: properties that hold, broken ones with an input that shows it, and the cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import encode
from fpsim.display.wording import listed
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.coverage import CoverageRecord, InputCoverage
from fpsim.testing.pasted import pasted

LISTED = 4  # rivals that the text of a report names


@dataclass(frozen=True)
class Broken:
    """A property that does not hold, and the smallest input that shows this.

    Attributes:
      property: its name, such as "ties".
      why: a sentence on what is wrong, or "".
      input_bits: bit pattern of the input, or None if only a whole array shows the fault.
      input: the input as a hexadecimal and a decimal number; "" if only a whole array shows the fault.
      got, want: text on the function's result and the right one, code and value.
      got_code, want_code: their codes; None if the format cannot represent the value.
      paste: a Python expression whose result is wrong, or "".
      count, of: number of inputs that break the property, and number of inputs checked.
    """

    property: str
    why: str = ""
    input_bits: int | None = None
    input: str = ""
    got: str = ""
    want: str = ""
    got_code: int | None = None
    want_code: int | None = None
    paste: str = ""
    count: int = 0
    of: int = 0

    def __str__(self) -> str:
        many = f"{self.count:,} of {self.of:,} wrong" if self.of else ""
        parts = [f"{self.property}: {': '.join(part for part in (many, self.why) if part)}".rstrip(": ")]
        if self.input:
            parts.append(f"    {self.input}: got {self.got}, want {self.want}")
        if self.paste:
            parts.append(f"    {self.paste}")
        return "\n".join(parts)


@dataclass(frozen=True)
class QuantizerReport:
    """Result of `check_quantizer`; true if all properties hold.

    Attributes:
      ok: whether all properties hold.
      held: names of the properties that hold.
      broken: the properties that do not hold, each with an input that shows it.
      diagnosis: text on the cause of the differences; "" if all results are right.
      causes: what the quantizer does wrong, as clauses ("drops the sign"); empty if nothing explains all differences.
      differ, of: number of inputs with a wrong result, and number of inputs.
      unexplained: number of results that the causes do not reproduce.
      excluded: number of other policies and faults that would change at least one result.
      rivals: other policies and faults that would change no result.
      notes: remarks on what is no fault.
      covered: the inputs that were compared: `.shapes`, `.sizes`, `.layouts`, `.dtypes`, `.smallest`, `.largest`.
      name, fmt: name of the function, and the format.
      asked: the keywords of the check.
    """

    name: str
    fmt: Element
    asked: dict[str, Any]
    held: tuple[str, ...]
    broken: tuple[Broken, ...]
    diagnosis: str = ""
    causes: tuple[str, ...] = ()
    differ: int = 0
    of: int = 0
    unexplained: int = 0
    excluded: int = 0
    rivals: tuple[str, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    covered: InputCoverage = field(default_factory=InputCoverage)

    @property
    def ok(self) -> bool:
        """True if all properties hold."""
        return not self.broken

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        keywords = ", ".join(f"{word}={value!r}" for word, value in self.asked.items())
        lines = [f"{self.name} {'is' if self.ok else 'is not'} a quantizer to {self.fmt} with {keywords}."]
        if self.of:
            why = f" {self.diagnosis[0].upper()}{self.diagnosis[1:].rstrip('.')}." if self.diagnosis else ""
            lines.append(f"{self.differ:,} of {self.of:,} results differ.{why}")
        if self.ok and (self.excluded or self.rivals):
            lines.append(certificate(self.excluded, self.rivals))
        lines += [f"  {line}" for broken in self.broken for line in str(broken).splitlines()]
        lines.append(f"  held: {', '.join(self.held) or 'nothing'}")
        lines += [f"  covered: {self.covered}"] if self.covered.calls else []
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def certificate(excluded: int, rivals: tuple[str, ...]) -> str:
    """Return the sentence on which other policies and faults the results of a quantizer exclude.

    excluded: number of the policies and faults that would give other results. rivals: clauses on those that would give
    the same results.
    """
    if not rivals:
        return f"Each of {excluded:,} other policies and faults would give another result for at least one input."
    more = " in .rivals" if len(rivals) > LISTED else ""
    text = f"Of {excluded + len(rivals):,} other policies and faults, {excluded:,} would give another result"
    return f"{text} for at least one input; not excluded: {listed(rivals, LISTED, '; ')}{more}."


def explained_by(causes: tuple[str, ...]) -> str:
    """Return the sentence saying that `causes`, such as "drops the sign", explain every difference."""
    whole = "one cause explains all" if len(causes) == 1 else f"{len(causes)} causes together explain all"
    return f"{whole}: it {'; it '.join(causes)}"


def but(faults: tuple[str, ...]) -> str:
    """Return faults as the end of a sentence, such as ", but it drops the sign; it flushes"; "" without faults."""
    return f", but it {'; it '.join(faults)}" if faults else ""


def explained(*causes: str) -> dict[str, Any]:
    """Return the `QuantizerReport` fields for causes, such as "drops the sign", that explain every difference."""
    return {"causes": causes, "diagnosis": explained_by(causes), "unexplained": 0}


def keywords_of(options: CastOptions) -> dict[str, Any]:
    """Return the keywords of a cast as a report lists them: {"rounding": ..., "overflow": ..., "subnormals": ...}."""
    return {"rounding": options.rounding.name.lower(), "overflow": options.overflow, "subnormals": options.subnormals}


class Findings:
    """Record of a check: the properties that hold, the broken ones, and notes, each in the order of the checks."""

    def __init__(self) -> None:
        self.held: dict[str, None] = {}
        self.broken: dict[str, Broken] = {}
        self.notes: dict[str, None] = {}

    def record(self, name: str, broken: Broken | None = None) -> None:
        """Record that a property holds, or that it is broken; of several broken results, the first is kept.

        name: the property. broken: how it is broken; None if it holds.
        """
        if broken is None:
            self.held.setdefault(name)
        else:
            self.broken.setdefault(name, broken)

    def note(self, text: str) -> None:
        """Add a note, unless it was added before."""
        self.notes.setdefault(text)

    def refuse(self, refusal: FunctionMisbehaved) -> None:
        """Record the rule that a function broke (`refusal.rule`, such as "dtype") as a broken property.

        An earlier broken property of the same name is replaced.
        """
        self.broken[refusal.rule] = Broken(refusal.rule, refusal.sentence)

    @property
    def names_held(self) -> tuple[str, ...]:
        """Names of the properties that held in all checks."""
        return tuple(name for name in self.held if name not in self.broken)

    def report(
        self, name: str, fmt: Any, asked: dict[str, Any], covered: CoverageRecord, **fields: Any
    ) -> QuantizerReport:
        """Return the report of a check, with these findings.

        Args:
          name, fmt, asked: name of the checked function, its format, and the keywords of the check.
          covered: record of the inputs.
          fields: further fields of the report.
        """
        return QuantizerReport(
            name, fmt, asked, self.names_held, tuple(self.broken.values()), notes=tuple(self.notes),
            covered=covered.coverage, **fields,
        )  # fmt: skip


def shown_input(x: Any) -> str:
    """Return a NumPy float scalar as text: hexadecimal, decimal, and bit pattern."""
    number = float(x)
    bits = int(np.asarray(x).view(f"u{x.dtype.itemsize}"))
    return f"x = {number.hex()} ({number!r}, 0x{bits:0{2 * x.dtype.itemsize}X})"


def input_fields(x: Array) -> dict[str, Any]:
    """Return two fields of `Broken` for the float x[0]: {"input_bits": its bit pattern, "input": it as text}."""
    return {"input_bits": int(x.view(f"u{x.dtype.itemsize}")[0]), "input": shown_input(x[0])}


def code_of(word: Any, fmt: Format) -> int | None:
    """Return the code of a value in a format; None if the format does not have the value.

    word: the value, as the uint64 bit pattern of a float64.
    """
    value = np.array([word], np.uint64).view(np.float64)
    if np.isnan(value[0]):
        return fmt.nan_code
    code = int(encode(value, fmt, overflow="saturate_finite")[0])
    back = fmt.value_of(code)
    same = back == value[0] and (not np.signbit(value[0])) == (not np.signbit(back))
    return code if same else None


def shown_result(word: Any, fmt: Format) -> str:
    """Return a result as text: its code in the format and its value. word: uint64 bit pattern of the float64 result."""
    value = float(np.array([word], np.uint64).view(np.float64)[0])
    code = code_of(word, fmt)
    if code is None:
        return f"{value!r}, which {fmt} does not have"
    return f"0x{code:0{-(-fmt.bits // 4)}X} ({value!r})"


def broken_at(name: str, x: Array, got: Any, want: Any, fmt: Format, call: str, **fields: Any) -> Broken:
    """Return the broken property `name`, as shown by the input x[0].

    got, want: the result for x[0] and the right one, as uint64 bit patterns of float64. call: name of the function.
    fields: the attributes `why`, `count`, `of` and perhaps `paste` of the `Broken` that is returned.
    """
    return Broken(
        name, **input_fields(x), got=shown_result(got, fmt), want=shown_result(want, fmt), got_code=code_of(got, fmt),
        want_code=code_of(want, fmt), **{"paste": f"{call}({pasted(x[:1])})", **fields},
    )  # fmt: skip
