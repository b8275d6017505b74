"""Reports of kernel checks: which bits differ, where, why, and what was compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fpsim.arrays import Array
from fpsim.display.wording import listed, plural
from fpsim.formats.float_format import Format
from fpsim.schedules.trees.tree import Tree
from fpsim.testing.pasted import pasted
from fpsim.testing.products.promise import KernelInputs, Promise, values_of
from fpsim.testing.products.terms import TermFactors
from fpsim.testing.products.variants import Variant

if TYPE_CHECKING:
    from fpsim.probe.model import Model

LISTED = 4  # rivals that the text of a report names


@dataclass(frozen=True)
class Mismatch:
    """A wrong element of a product, with its codes and values.

    Attributes:
      inputs: the inputs of the product: `.name`, `.a`, `.b`, and scales and bias if promised.
      element: (row, column).
      got_code, want_code: codes of the kernel's result and of the promised one.
      got, want: their values.
      ulps: distance of these two values, in values of the format; Inf if one of the two is not finite.
      fmt: the format of the results.
      paste: two lines of Python that make the row of a and the column of b; "" if K exceeds 16.
    """

    inputs: KernelInputs
    element: tuple[int, int]
    got_code: int
    want_code: int
    got: float
    want: float
    ulps: float
    fmt: Format = field(repr=False)
    paste: str = field(repr=False)

    def __str__(self) -> str:
        digits = -(-self.fmt.bits // 4)
        return (
            f"{self.inputs}, element {self.element}: got 0x{self.got_code:0{digits}X} ({self.got!r} = "
            f"{self.got.hex()}), want 0x{self.want_code:0{digits}X} ({self.want!r} = {self.want.hex()}), "
            f"{ulps_in_words(self.ulps)}"
        )


@dataclass(frozen=True)
class ProductCoverage:
    """Summary of the inputs for which a kernel's results were compared.

    Attributes:
      shapes: (M, N, K), each once.
      kinds: names of the kinds of inputs, such as "cancelling".
      dtypes: dtypes of the operands.
      layouts: names of memory layouts other than C order, such as "b transposed".
      smallest, largest: smallest and largest magnitude of a finite element other than zero; 0 if there is none.
      specials: which of "zeros", "infinities" and "NaNs" were among the operands.
    """

    shapes: tuple[tuple[int, int, int], ...] = ()
    kinds: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    smallest: float = 0.0
    largest: float = 0.0
    specials: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()

    def __str__(self) -> str:
        sides = zip("MNK", zip(*self.shapes, strict=True), strict=True)
        ranges = [f"{side} {min(sizes):,} to {max(sizes):,}" for side, sizes in sides]
        parts = [f"{', '.join(ranges)} in {plural(len(self.shapes), 'shape')}", f"{len(self.kinds)} kinds of inputs"]
        parts += [f"{' and '.join(self.dtypes)} operands, {', '.join(('in C order', *self.layouts))}"]
        parts += [f"magnitudes from {self.smallest:.3g} to {self.largest:.3g}"] if self.largest else []
        return "; ".join(parts + ([", ".join(self.specials)] if self.specials else []))


@dataclass(frozen=True)
class KernelReport:
    """Result of `check_kernel`; as a bool, True if the kernel keeps its promise (the arithmetic that it claims).

    Attributes:
      ok: whether all bits are the promised ones, or all results are within the error bounds.
      mismatches, of: number of wrong elements, and of all elements.
      inputs: number of products.
      first: a wrong element of a product with small K; None if no element is wrong.
      max_ulp: the largest distance of a result from the promised one, in values of the format; Inf if they differ and
        one of the two is not finite.
      explanation: a sentence on what the kernel does instead of what it promised; "" if all is right.
      causes: what the kernel does wrong, as clauses without subject; empty if no variant explains all differences.
      variant: the changes of the promise that explain most differences; None if none reduces them.
      unexplained: number of elements that the explanation does not reproduce.
      others: further variants that explain as much.
      where: phrase on the inputs or elements to which differences are limited; "" if there is no such limit.
      terms: the fewest terms of K that show the first difference, if all others are zero.
      smallest: inputs with these terms alone in the row of a and the column of b of one element.
      terms_shown: text with these terms, the codes got and wanted with them, and lines to paste; "" without terms.
      meet: where these terms are first added together, in the promised sum and in the sum by `variant`; "" if unknown.
      trees: the trees of the promised sum and of the sum by `variant`; None for a sum without a tree.
      model: a model of `fpsim.probe`, if no variant explains all and the kernel could be probed; else None.
      excluded: number of other variants that differ for at least one input.
      same: other names for the promised arithmetic, which mean the same additions for these shapes.
      rivals: other variants whose results are the same for all inputs.
      broken: the rules of calls that the kernel broke, one sentence each.
      share: the largest error of a result divided by its bound; NaN if there are no bounds.
      derivation: text on how the error bounds follow; "" without bounds.
      notes: remarks on what is no fault.
      covered: the inputs that were compared: `.shapes`, `.kinds`, `.dtypes`, `.smallest`, `.largest`, `.specials`,
        `.layouts`.
      name, asked: name of the kernel, and what it promised.
    """

    name: str
    asked: str
    mismatches: int = 0
    of: int = 0
    inputs: int = 0
    first: Mismatch | None = None
    max_ulp: float = 0.0
    explanation: str = ""
    causes: tuple[str, ...] = ()
    variant: Variant | None = field(default=None, repr=False)
    unexplained: int = 0
    others: tuple[str, ...] = field(default=(), repr=False)
    where: str = ""
    terms: tuple[TermFactors, ...] = field(default=(), repr=False)
    smallest: KernelInputs | None = field(default=None, repr=False)
    terms_shown: str = field(default="", repr=False)
    meet: tuple[str, str] = ("", "")
    trees: tuple[Tree | None, Tree | None] = field(default=(None, None), repr=False)
    model: Model | None = field(default=None, repr=False)
    excluded: int = 0
    same: tuple[str, ...] = field(default=(), repr=False)
    rivals: tuple[str, ...] = field(default=(), repr=False)
    broken: tuple[str, ...] = ()
    share: float = math.nan
    derivation: str = ""
    notes: tuple[str, ...] = ()
    covered: ProductCoverage = field(default_factory=ProductCoverage)

    @property
    def ok(self) -> bool:
        """True if no result is wrong, and the kernel broke no rule of calls, such as to leave operands unchanged."""
        return not self.mismatches and not self.broken

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        kept = "is within the error bounds of" if self.derivation else "has the bits of"
        missed = "exceeds the error bounds of" if self.derivation else "does not have the bits of"
        lines = [f"{self.name} {kept if self.ok else missed} {self.asked}."]
        lines += [f"  {sentence}" for sentence in self.broken]
        if self.of:
            of = f"{self.of:,} elements of {self.inputs} inputs"
            wrong = "exceed their bounds; from the promised sums they differ" if self.derivation else "differ,"
            if self.mismatches:
                why = f". {self.explanation}" if self.explanation else "."
                far = "some in Inf or NaN" if math.isinf(self.max_ulp) else f"by up to {ulps_in_words(self.max_ulp)}"
                lines.append(f"{self.mismatches:,} of {of} {wrong} {far}{why}")
            elif self.derivation:
                share = "no element has a bound" if math.isnan(self.share) else ""
                share = share or f"the largest error is {self.share:.1%} of its bound"
                lines.append(f"None of {of} exceeds its bound; {share}.")
            else:
                said = self._certificate() if self.excluded or self.rivals else ""
                lines.append(f"All {of} are equal. {said}".rstrip())
        if self.derivation:
            lines.append(f"  {self.derivation}")
        if self.first is not None:
            lines += [f"  first: {self.first}", *(f"    {line}" for line in self.first.paste.splitlines())]
        if self.terms_shown:
            lines += [f"  {line}" for line in self.terms_shown.splitlines()]
        lines += [f"  {side}: {said}" for side, said in zip(("promised", "explained"), self.meet, strict=True) if said]
        if self.mismatches and self.others:
            lines.append(f"  as well explained by: {listed(self.others, LISTED, '; ')}")
        lines += [f"  covered: {self.covered}"] if self.covered.shapes else []
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _certificate(self) -> str:
        """Return a sentence on the other arithmetics that the results exclude, and those that they do not exclude."""
        others = "other additions, orders, roundings and faults"
        text = f"Each of {self.excluded:,} {others} would give another result for at least one input"
        if self.rivals:
            unlike = f"Of {self.excluded + len(self.rivals):,} {others}, {self.excluded:,} would give another result"
            text = f"{unlike}; not excluded: {listed(self.rivals, LISTED, '; ')}"
        if self.same:
            text += f"; {len(self.same)} further names mean the same additions for these shapes"
        return f"{text}."


def ulps_in_words(ulps: float) -> str:
    """Return a distance in units of the last place as text, such as "3 ulps".

    Inf means that the two values differ and that one of them is Inf or NaN.
    """
    if math.isinf(ulps):
        return "different values, of which one is Inf or NaN"
    return "1 ulp" if ulps == 1 else f"{int(ulps):,} ulps"


def distance(got: Array, want: Array, fmt: Format) -> Array:
    """Return the distances between the codes `got` and `want`, counted in values of the format, as a float64 array.

    0 and -0 are 1 apart. The distance of an infinity or NaN is 0 from the same code, and Inf from every other code.
    """
    x, y = values_of(got, fmt), values_of(want, fmt)
    places, others = (codes.astype(np.int64 if fmt.bits < 64 else object) for codes in (got, want))
    if fmt.signed:  # count from 0 to either side
        sign = 1 << (fmt.bits - 1)
        places, others = (np.where(codes >= sign, sign - codes, codes) for codes in (places, others))
    apart = np.abs((places - others).astype(np.float64))
    apart = np.where((apart == 0) & (got != want), 1.0, apart)
    return np.where(np.isfinite(x) & np.isfinite(y), apart, np.where(got == want, 0.0, np.inf))


def mismatch(promise: Promise, x: KernelInputs, got: Array, want: Array, element: tuple[int, int]) -> Mismatch:
    """Return the `Mismatch` of an element (row, column) of the product of x.

    promise: the kernel's claim, for the result format. got, want: codes of all elements, (M, N).
    """
    row, column = element
    fmt = promise.out
    codes = got[element], want[element]
    values = [float(values_of(np.array([code]), fmt)[0]) for code in codes]
    apart = float(distance(np.array([codes[0]]), np.array([codes[1]]), fmt)[0])
    paste = ""
    if x.shape[2] <= 16:
        paste = f"a = {pasted(x.a[row : row + 1])}\nb = {pasted(x.b[:, column : column + 1])}"
    return Mismatch(x, element, int(codes[0]), int(codes[1]), values[0], values[1], apart, fmt, paste)
