"""Reports of checks of kernels: which bits differ, where, why, and what was compared."""

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

LISTED = 4  # rivals that a text names


@dataclass(frozen=True)
class Mismatch:
    """A wrong element of a product.

    Attributes:
      inputs: the inputs of the product: `.name`, `.a`, `.b`, and scales and bias if promised.
      element: (row, column).
      got_code, want_code: codes of the result and of the right one; got, want: their values.
      ulps: distance in values of the format; Inf if only one is finite.
      paste: two lines of Python that make the row of a and the column of b.
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
    """The inputs of a kernel whose results were compared.

    Attributes:
      shapes: (M, N, K), each once.
      kinds: names of the kinds of inputs, such as "cancelling".
      dtypes: dtypes of the operands.
      layouts: names of memory layouts other than C order, such as "b transposed".
      smallest, largest: magnitudes of the smallest and the largest finite operand other than zero.
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
    """The report of `check_kernel`.

    Attributes:
      ok: whether all bits are the promised ones, or all results are within the error bounds.
      mismatches, of: number of wrong elements, and of all elements.
      inputs: number of products.
      first: a wrong element of a short sum; None if there is none.
      max_ulp: the largest distance in values of the format; Inf if only one of two values is finite.
      explanation: what the kernel does instead, as text; "" if all is right.
      causes: what the kernel does instead, as clauses ("it ..."); empty if no variant explains all.
      variant: the changes as data; None if no change brings the results nearer.
      unexplained: number of elements that the explanation does not give either.
      others: further variants that explain as much.
      where: the inputs or elements to which differences are limited, as text.
      terms: the fewest terms of K that show the first difference, with all others zero.
      smallest: inputs with these terms alone in the row and column of an element.
      meet: where these terms meet in the promised sum, and in that of the explanation.
      trees: the promised tree and that of the explanation, None for additions without a tree.
      model: a model of `fpsim.probe`, if no variant explains all and the kernel could be probed.
      excluded: number of other variants that differ for at least one input.
      same: other names for the promised additions, for these shapes.
      rivals: other variants that give the same results.
      broken: rules that the function broke, one sentence each.
      share: the largest share of an error bound that a result used, NaN if there are no bounds.
      derivation: derivation of the error bounds.
      notes: remarks that are no faults.
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
        """True if the kernel keeps its promise."""
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
                far = f"by up to {ulps_in_words(self.max_ulp)}"
                lines.append(f"{self.mismatches:,} of {of} {wrong} {far}{self._why()}")
            elif self.derivation:
                lines.append(f"All {of} are within their bounds; the largest error is {self.share:.1%} of its bound.")
            else:
                said = certificate(self.excluded, self.rivals, self.same) if self.excluded or self.rivals else ""
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

    def _why(self) -> str:
        """Return the explanation as the end of a sentence."""
        return f". {self.explanation}" if self.explanation else "."


def certificate(excluded: int, rivals: tuple[str, ...], same: tuple[str, ...]) -> str:
    """Return the sentence that says how many other variants the results exclude, and which they cannot exclude."""
    all_of = excluded + len(rivals)
    others = "other additions, orders, roundings and faults"
    text = f"Each of {excluded:,} {others} would give another result for at least one input"
    if rivals:
        unlike = f"Of {all_of:,} {others}, {excluded:,} would give another result"
        text = f"{unlike}; not excluded: {listed(rivals, LISTED, '; ')}"
    if same:
        text += f"; {len(same)} further names mean the same additions for these shapes"
    return f"{text}."


def ulps_in_words(ulps: float) -> str:
    """Return a distance in units of the last place as text."""
    if math.isinf(ulps):
        return "one finite and the other not"
    return "1 ulp" if ulps == 1 else f"{int(ulps):,} ulps"


def ordinals(codes: Array, fmt: Format) -> Array:
    """Return codes as integers in the order of their values; both zeros are 0, one ulp from the smallest values."""
    wide = codes.astype(np.int64 if fmt.bits < 64 else object)
    if not fmt.signed:
        return wide
    sign = 1 << (fmt.bits - 1)
    return np.where(wide >= sign, sign - wide, wide)


def distance(got: Array, want: Array, fmt: Format) -> Array:
    """Return distances of codes in values of the format, float64; a zero of the other sign is 1 ulp away."""
    x, y = values_of(got, fmt), values_of(want, fmt)
    apart = np.abs((ordinals(got, fmt) - ordinals(want, fmt)).astype(np.float64))
    apart = np.where((apart == 0) & (got != want), 1.0, apart)
    return np.where(np.isfinite(x) & np.isfinite(y), apart, np.where(got == want, 0.0, np.inf))


def mismatch(promise: Promise, x: KernelInputs, got: Array, want: Array, element: tuple[int, int]) -> Mismatch:
    """Return a wrong element of a product."""
    row, column = element
    fmt = promise.out
    codes = got[element], want[element]
    values = [float(values_of(np.array([code]), fmt)[0]) for code in codes]
    apart = float(distance(np.array([codes[0]]), np.array([codes[1]]), fmt)[0])
    paste = ""
    if x.shape[2] <= 16:
        paste = f"a = {pasted(x.a[row : row + 1])}\nb = {pasted(x.b[:, column : column + 1])}"
    return Mismatch(x, element, int(codes[0]), int(codes[1]), values[0], values[1], apart, fmt, paste)
