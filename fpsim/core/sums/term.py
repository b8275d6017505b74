"""Scalar core: a code as a term of a sum, with the exponent of its code. Integers only, so CPU and CUDA agree.

Matrix units align terms by the exponents of their codes: a subnormal has the smallest exponent of its format, and a
product has the sum of its factors' exponents, even where its significand is 2 or more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.core.number import BIAS, FINITE, INFINITE, NAN, ZERO, UnpackLayout
from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar

i64, u64 = np.int64, np.uint64

NO_SPECIAL, HAS_NAN, HAS_PLUS, HAS_MINUS = i64(0), i64(1), i64(2), i64(4)  # kinds of terms that a sum had: bits


@reloadable
class Term(NamedTuple):
    """A number (-1)**negative * significand * 2**(exponent - mantissa bits of its format); every field is an int64.

    Attributes:
      negative: 0 or 1.
      significand: an integer with the hidden bit; 0 for Inf and NaN.
      exponent: exponent of the code; for subnormals and zero, that of the smallest normal value.
      kind: FINITE (0), INFINITE (1) or NAN (2).
    """

    negative: Any
    significand: Any
    exponent: Any
    kind: Any


@scalar
def term_of(code: Any, f: UnpackLayout) -> Term:
    """Return a code as a Term: sign, significand, exponent of the code, and kind.

    code: uint64; f: UnpackLayout, the constants of the code's format.
    """
    magnitude = u64(code & f.magnitude_mask)
    field = u64(magnitude >> f.mantissa_bits)
    mantissa = u64(magnitude ^ u64(field << f.mantissa_bits))
    hidden = u64(u64(field >= f.smallest_field) << f.mantissa_bits)
    exponent = i64(u64(u64(max(field, f.smallest_field) + f.rebias) + f.mantissa_bits)) - i64(BIAS)
    is_nan = ((magnitude > f.max_code) & (magnitude != f.infinity)) | (code == f.own_nan)
    is_infinite = magnitude == f.infinity
    negative = i64((u64(code & f.sign_bit) != ZERO) & (code != f.own_nan))
    kind = i64(NAN) if is_nan else i64(INFINITE) if is_infinite else i64(FINITE)
    significand = i64(0) if is_nan | is_infinite else i64(u64(mantissa | hidden))
    return Term(negative, significand, i64(exponent), kind)


@scalar
def specials_of_product(x: Term, y: Term) -> Any:
    """Return the flag of x * y: HAS_NAN (also for Inf * 0), HAS_PLUS (+Inf), HAS_MINUS (-Inf), or 0 if it is finite.

    A Term is a finite or special value: sign, integer significand, exponent, and kind (finite, Inf, NaN).
    """
    if (x.kind == i64(NAN)) | (y.kind == i64(NAN)):
        return HAS_NAN
    if (x.kind == i64(FINITE)) & (y.kind == i64(FINITE)):
        return NO_SPECIAL
    no_product = ((x.kind == i64(FINITE)) & (x.significand == i64(0))) | (
        (y.kind == i64(FINITE)) & (y.significand == i64(0))
    )
    if no_product:  # Inf * 0
        return HAS_NAN
    return HAS_PLUS if x.negative == y.negative else HAS_MINUS


@scalar
def specials_of(x: Term) -> Any:
    """Return the flag of the Term x: HAS_NAN, HAS_PLUS (+Inf), HAS_MINUS (-Inf), or 0 if it is finite.

    A Term is a finite or special value: sign, integer significand, exponent, and kind (finite, Inf, NaN).
    """
    if x.kind == i64(NAN):
        return HAS_NAN
    if x.kind == i64(FINITE):
        return NO_SPECIAL
    return HAS_PLUS if x.negative == i64(0) else HAS_MINUS


@scalar
def special_code(specials: Any, nan: Any, infinity: Any, sign_bit: Any) -> Any:
    """Return the code of a sum that has NaN or Inf among its terms: `nan`, or `infinity` with the right sign.

    specials: the terms' flags HAS_NAN, HAS_PLUS and HAS_MINUS, or-ed, not 0. A sum with Inf of both signs is `nan`.
    sign_bit: mask of the sign in a code.
    """
    if (specials & HAS_NAN) | (specials == (HAS_PLUS | HAS_MINUS)):
        return nan
    return infinity if specials == HAS_PLUS else u64(infinity | sign_bit)


@scalar
def shifted(magnitude: Any, left: Any) -> Any:
    """Return magnitude * 2**left truncated to an integer, as an int64; left may be negative.

    magnitude: an int64 >= 0; the result must not overflow. left: an int64.
    """
    up = min(max(left, i64(0)), i64(62))
    down = min(max(-left, i64(0)), i64(62))
    return i64(i64(magnitude << up) >> down)


@scalar
def signed(negative: Any, magnitude: Any) -> Any:
    """Return -magnitude if `negative` is not 0, else magnitude; all are int64."""
    return i64(-magnitude) if negative != i64(0) else magnitude


@scalar
def magnitude_of(total: Any) -> Any:
    """Return (1 if total < 0 else 0, |total|), two uint64, for an int64 total."""
    negative = u64(total < i64(0))
    return negative, u64(i64(-total) if total < i64(0) else total)
