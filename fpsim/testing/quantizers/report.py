"""The report of a check of a quantizer, as data and as a text to act on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import encode
from fpsim.formats.float_format import Format
from fpsim.testing.coverage import InputCoverage
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.restricted import Restricted

LISTED = 4  # rivals that a text names


@dataclass(frozen=True)
class Broken:
    """A property that does not hold, and the smallest input that shows it.

    Attributes:
      property: its name.
      why: a sentence.
      input_bits: the pattern of the input, or None where a whole array shows it.
      input: the input as a hexadecimal float and what it is about, "" where there is none.
      got, want: both results, as codes and values.
      got_code, want_code: both codes, None for what is no value of the format.
      paste: an expression to paste, whose result is wrong.
      count: how many of the inputs that the property is about show it; of: how many these are.
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
        many = f"{self.count:,} of {self.of:,}" if self.of else ""
        parts = [f"{self.property}: {'. '.join(part for part in (many, self.why) if part)}".rstrip(": ")]
        if self.input:
            parts.append(f"    {self.input}: got {self.got}, want {self.want}")
        if self.paste:
            parts.append(f"    {self.paste}")
        return "\n".join(parts)


@dataclass(frozen=True)
class QuantizerIdentity:
    """The identity of a quantizer, as far as its results tell.

    Attributes:
      fmt: the format that was asked about.
      rounding: what it does, as a keyword of `fpsim.encode`; where no keyword does it, the name of a rule that one of
        `faults` describes, such as "nearest_up".
      overflow, subnormals: keywords of `fpsim.encode`, of the nearest policy.
      keywords: all keywords of the nearest policy.
      faults: what it does otherwise than that policy, as clauses after "it".
      intermediate: the format that it rounds to first, or None.
      exact: whether policy and faults together give every result.
      differ, of: how many inputs differ from that, of how many.
      model: the steps, faults included.
      tried: how many models were held against the results.
      excluded: how many other policies differ on at least one of the inputs.
      rivals: those that do not.
      where: where those inputs lie that nothing explains.
    """

    fmt: Format
    rounding: str
    overflow: str
    subnormals: str
    keywords: dict[str, Any] = field(repr=False)
    faults: tuple[str, ...]
    intermediate: str | None
    exact: bool
    differ: int
    of: int
    model: QuantizerModel | Restricted = field(repr=False)
    tried: int
    excluded: int
    rivals: tuple[str, ...] = field(repr=False)
    where: str

    @property
    def is_policy(self) -> bool:
        """Return whether `fpsim.encode` with these keywords gives the same."""
        return self.exact and not self.faults

    def __str__(self) -> str:
        policy = f"{self.fmt}, {', '.join(f'{word}={value!r}' for word, value in self.keywords.items())}"
        if not self.exact:
            near = f"; the nearest, {policy}{_but(self.faults)}, differs on {self.differ:,}" if self.differ else ""
            return f"None of {self.tried:,} models gives all {self.of:,} results{near}. {self.where}"
        return f"{policy}{_but(self.faults)}: all {self.of:,} results. {certificate(self.excluded, self.rivals)}"


@dataclass(frozen=True)
class QuantizerReport:
    """The report of `check_quantizer`.

    Attributes:
      ok: whether all properties hold.
      held: names of those that do.
      broken: those that do not.
      diagnosis: the cause, in words; "" where all is well.
      causes: what the quantizer does otherwise, as clauses after "it"; empty where nothing explains the differences.
      differ, of: how many inputs differ from what is right, of how many.
      unexplained: how many still differ from the diagnosis.
      excluded: how many other policies differ on at least one of the inputs from what the verdict says.
      rivals: those that do not.
      notes: what is no fault, but good to know.
      covered: the inputs that were compared: `.shapes`, `.sizes`, `.layouts`, `.dtypes`, `.smallest`, `.largest`.
      name, fmt: of the quantizer.
      asked: the keywords.
    """

    name: str
    fmt: Any
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
        """Return whether all properties hold."""
        return not self.broken

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        keywords = ", ".join(f"{word}={value!r}" for word, value in self.asked.items())
        lines = [f"{self.name} {'is' if self.ok else 'is not'} a quantizer to {self.fmt} with {keywords}."]
        if self.of:
            lines.append(
                f"{self.differ:,} of {self.of:,} points differ{': ' if self.diagnosis else '.'}{self.diagnosis}"
            )
        if self.ok and (self.excluded or self.rivals):
            lines.append(certificate(self.excluded, self.rivals))
        lines += [f"  {line}" for one in self.broken for line in str(one).splitlines()]
        lines.append(f"  held: {', '.join(self.held) or 'nothing'}")
        lines += [f"  covered: {self.covered}"] if self.covered.calls else []
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def certificate(excluded: int, rivals: tuple[str, ...]) -> str:
    """Return the sentence that says what a verdict excludes."""
    text = (
        f"Of {excluded + len(rivals):,} other policies and faults {excluded:,} differ on at least one of these inputs"
    )
    if not rivals:
        return f"{text}: every one."
    named = "; ".join(rivals[:LISTED])
    more = f"; and {len(rivals) - LISTED} more in .rivals" if len(rivals) > LISTED else ""
    return f"{text}; not excluded: {named}{more}."


def _but(faults: tuple[str, ...]) -> str:
    return f", but it {'; it '.join(faults)}" if faults else ""


def shown_input(x: Any) -> str:
    """An input as a hexadecimal float and its pattern."""
    number = float(x)
    bits = int(np.asarray(x).view(f"u{x.dtype.itemsize}"))
    return f"x = {number.hex()} ({number!r}, 0x{bits:0{2 * x.dtype.itemsize}X})"


def code_of(word: Any, fmt: Format) -> int | None:
    """The code of a value given as the pattern of a float64, None for what is no value of the format."""
    value = np.array([word], np.uint64).view(np.float64)
    if np.isnan(value[0]):
        return fmt.nan_code
    code = int(encode(value, fmt, overflow="saturate_finite")[0])
    back = fmt.value_of(code)
    same = back == value[0] and (not np.signbit(value[0])) == (not np.signbit(back))
    return code if same else None


def shown_result(word: Any, fmt: Format) -> str:
    """A result as code and value."""
    value = float(np.array([word], np.uint64).view(np.float64)[0])
    code = code_of(word, fmt)
    if code is None:
        return f"{value!r}, which {fmt} does not have"
    return f"0x{code:0{-(-fmt.bits // 4)}X} ({value!r})"


def broken_at(name: str, x: Array, got: Any, want: Any, fmt: Format, call: str, **fields: Any) -> Broken:
    """A Broken whose input is one element."""
    scalar = x[0]
    return Broken(
        name, input_bits=int(x.view(f"u{x.dtype.itemsize}")[0]), input=shown_input(scalar), got=shown_result(got, fmt),
        want=shown_result(want, fmt), got_code=code_of(got, fmt), want_code=code_of(want, fmt),
        paste=f"{call}({pasted(x[:1])})", **fields,
    )  # fmt: skip
