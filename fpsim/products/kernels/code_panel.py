"""Panels of operand b decoded directly from its codes, without an array of floats for all of b.

A panel is the decoded terms of one instruction for some columns of b. "bytes" are codes of formats of up to 8 bits,
"halves" those of FP16 and BF16. Codes may be stored row by row or column by column; the latter are transposed first, in
the processor's registers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import FP16, Format
from fpsim.products.kernels.panel import BIAS, INFINITE, MANTISSA_BITS, SPECIAL, ZERO_EXPONENT, class_of
from fpsim.products.kernels.transpose import transposer
from fpsim.reload import reloadable
from fpsim.runtime.compile import inner_loop, scalar
from fpsim.runtime.records import fields_of
from fpsim.runtime.stream import LINE, prefetch_line

i8, u8, i32, i64, f32 = np.int8, np.uint8, np.int32, np.int64, np.float32

SIDE = 16  # rows and columns of a square that is transposed at a time
WIDTH = 8  # bits of a code with its sign in front
MAGNITUDE = i32(0x7F)
NO_CODE = i32(0x80)
ONE, NAN = i32(0x3F800000), i32(0x7FC00000)
HIDDEN_BIT, SIGN = i32(1 << 23), i32(-0x80000000)
HALF_FIELD_BITS, HALF_BIAS = 5, 15  # of FP16's exponents
AHEAD = 256  # bytes between the codes of a column that are read and those that are prefetched


@reloadable
class CodeFacts(NamedTuple):
    """The layout of codes of up to 8 bits, as 32-bit integers in the order of an array that kernels are passed.

    Attributes:
      up: 8 minus the bits of a code.
      highest, infinity: magnitude codes of the largest finite value, and of Inf (NO_CODE for none).
      mantissa_bits, bias: number of mantissa bits, and exponent bias, of the format.
      turned: 1 if codes are stored column by column, else 0.
    """

    up: Any
    highest: Any
    infinity: Any
    mantissa_bits: Any
    bias: Any
    turned: Any


@reloadable
class HalfFacts(NamedTuple):
    """The layout of codes of FP16 or BF16, as 32-bit integers in the order of an array that kernels are passed.

    base: the number that is subtracted from exponents to store them as bytes. turned: 1 if codes are stored column by
    column, else 0. is_half: 1 for FP16, 0 for BF16.
    """

    base: Any
    turned: Any
    is_half: Any


code_facts, half_facts = fields_of(CodeFacts), fields_of(HalfFacts)


def facts_of(fmt: Format, turned: bool) -> npt.NDArray[Any]:
    """Return the constants by which kernels decode the codes of matrix b: int32 (6,), the fields of CodeFacts.

    They are 8 minus the bits of a code; the magnitude codes of the largest finite value and of Inf (128 without Inf);
    the number of mantissa bits; the exponent bias; and `turned` as 1 or 0. fmt: the format of b, of up to 8 bits.
    turned: True if the codes of b are stored column by column, False if row by row.
    """
    infinity = int(NO_CODE) if fmt.infinity_code is None else fmt.infinity_code
    return np.array([WIDTH - fmt.bits, fmt.max_code, infinity, fmt.mantissa_bits, fmt.bias, int(turned)], i32)


def facts_of_halves(fmt: Format, base: int, turned: bool) -> npt.NDArray[Any]:
    """Return the layout of codes of `fmt`, FP16 or BF16, as an int32 array with the fields of HalfFacts.

    base: the number that is subtracted from exponents to store them as bytes. turned: True if codes are stored column
    by column.
    """
    return np.array([base, int(turned), int(fmt == FP16)], i32)


def has_code_panels(fmt: Format) -> bool:
    """Return whether finite codes of `fmt` are laid out like FP16 in at most a byte: sign, exponent, mantissa.

    The largest exponent field must be below FP16's field of Inf, 31; the bias may be another.
    """
    plain = fmt.signed and fmt.has_zero and fmt.nan_code != fmt.sign_bit
    return fmt.bits <= WIDTH and plain and fmt.max_code >> fmt.mantissa_bits < (1 << HALF_FIELD_BITS) - 1


@scalar
def _half_pattern(code: Any, is_half: Any) -> Any:
    """Return the float32 bits, as int32, of a 16-bit code of FP16 (is_half 1) or BF16 (is_half 0)."""
    magnitude, sign = i32(code & i32(0x7FFF)), i32(i32(code << i32(16)) & SIGN)
    bits = i32(magnitude << i32(13))
    rebias, least = i32(112 << 23), i32(113 << 23).view(f32)
    normal = i32(bits + rebias)
    subnormal = f32(i32(normal + HIDDEN_BIT).view(f32) - least).view(i32)
    finite = subnormal if bits < HIDDEN_BIT else normal
    value = i32(normal + rebias) if magnitude >= i32(0x7C00) else finite
    return i32(value | sign) if is_half != i32(0) else i32(code << i32(16))


@scalar
def half_class(source: Any, k: Any, n: Any, facts: Any) -> Any:
    """Return the class of the FP16 or BF16 code of term k and column n: -1, -0, 0, 1 (by sign), Inf or NaN.

    The class is an int32 with float32 bits. source: (K, N) codes, or (N, K) if `facts` says that they are transposed.
    facts: int32 array with the layout of the codes, the fields of HalfFacts.
    """
    u = half_facts(facts)
    code = i32(source[n, k] if u.turned != i32(0) else source[k, n])
    return class_of(_half_pattern(code, u.is_half), i32(-1))


@scalar
def code_class(source: Any, k: Any, n: Any, facts: Any) -> Any:
    """Return the class of the 8-bit code of term k and column n: -1, -0, 0, 1 (by sign), Inf or NaN.

    The class is an int32 with float32 bits. source: (K, N) codes, or (N, K) if `facts` says that they are transposed.
    facts: int32 array with the layout of the codes, the fields of CodeFacts.
    """
    u = code_facts(facts)
    code = i32(source[n, k] if u.turned != i32(0) else source[k, n])
    magnitude = i32(code & i32(MAGNITUDE >> u.up))
    sign = i32(i32(code << i32(u.up + i32(24))) & SIGN)
    one = ONE if magnitude != i32(0) else i32(0)
    special = INFINITE if magnitude == u.infinity else NAN
    return i32(sign | (one if magnitude <= u.highest else special))


@scalar
def announce(source: Any, k: Any, n: Any, terms: Any, columns: Any, turned: Any) -> None:
    """Prefetch the codes of b that are read after terms k .. k + terms - 1 of columns n .. n + columns - 1.

    source: (K, N) codes, or (N, K) if turned is not 0. From (K, N) codes, the same terms of the next `columns` columns
    are prefetched. From (N, K) codes, the terms that are AHEAD bytes after term k in the same columns are prefetched.
    """
    if turned != i32(0):
        for x in range(n, min(n + columns, source.shape[0])):
            prefetch_line(source[x], k + AHEAD // source.itemsize)
    else:
        for i in range(k, min(k + terms, source.shape[0])):
            for x in range(n + columns, n + 2 * columns, LINE // source.itemsize):
                prefetch_line(source[i], x)


@cache
def gatherer(terms: int) -> Any:
    """Return the loop (source, k, n, width, turned, codes) -> None that copies a block of b's codes to `codes`.

    The block is `terms` terms from k on of `width` columns from n on. codes: (terms, columns), filled with zeros beyond
    K and `width`. source: (K, N) codes, or (N, K) if turned is not 0.
    """
    square, side = transposer(SIDE, max(terms // SIDE, 1)), SIDE if terms % SIDE == 0 else 0

    def gather(source: Any, k: Any, n: Any, width: Any, turned: Any, codes: Any) -> None:
        if turned != i32(0):
            high, first = min(i64(terms), source.shape[1] - k), i64(0)
            if side and high == terms:
                while first + side <= width:
                    square(source, n + first, k, codes, 0, first)
                    first += side
            for x in range(first, width):
                for i in range(high):
                    codes[i, x] = source[n + x, k + i]
        else:
            high = min(i64(terms), source.shape[0] - k)
            for i in range(high):
                row, to = source[k + i, n : n + width], codes[i]
                for x in range(row.size):
                    to[x] = row[x]
        for i in range(terms):
            for x in range(width if i < high else 0, codes.shape[1]):
                codes[i, x] = 0

    return inner_loop(gather)


def _decode_codes(codes: Any, facts: Any, values: Any, exponents: Any) -> Any:
    """Decode 8-bit codes to float32 bits and exponents (ZERO_EXPONENT for 0); return 1 if one is NaN or Inf, else 0.

    codes, values, exponents: 1-D uint8, int32 and int8 arrays of one length; values and exponents are written, and
    `codes` is overwritten. NaN and Inf become zeros. facts: int32 array, the fields of CodeFacts.

    Each code is widened and shifted so that its fields align with those of a float32. An integer addition corrects the
    exponent's bias, and a float32 subtraction normalises subnormals.
    """
    u = code_facts(facts)
    bias, highest = i8(u.bias), u8(i32(u.highest << u.up))
    # masked, so that the compiler knows that lanes are shifted by less than their width
    up, place = u8(u.up & i32(7)), u8(i32(u.mantissa_bits + u.up) & i32(7))
    shift = i32(i32(MANTISSA_BITS - u.mantissa_bits - u.up) & i32(31))
    kept, rebias = i32(MAGNITUDE << shift), i32(i32(BIAS - u.bias) << MANTISSA_BITS)
    least = i32(rebias + HIDDEN_BIT).view(f32)
    most = u8(0)
    for j in range(codes.size):
        code = u8(codes[j] << up)
        codes[j] = code
        magnitude = u8(code & u8(MAGNITUDE))
        most = max(most, magnitude)
        exponent = i8(u8(max(u8(magnitude >> place), u8(1))).view(i8) - bias)
        exponents[j] = exponent if (magnitude != u8(0)) & (magnitude <= highest) else i8(ZERO_EXPONENT)
    for j in range(codes.size):
        shifted = i32(i32(u8(codes[j]).view(i8)) << shift)
        bits = i32(shifted & kept)
        normal = i32(bits + rebias)
        subnormal = f32(i32(normal + HIDDEN_BIT).view(f32) - least).view(i32)
        values[j] = i32((subnormal if bits < HIDDEN_BIT else normal) | i32(shifted & SIGN))
    if most > highest:
        for j in range(codes.size):
            values[j] = values[j] if u8(codes[j] & u8(MAGNITUDE)) <= highest else i32(0)
    return i32(most > highest)


_decode_codes = inner_loop(_decode_codes)


@cache
def code_filler(terms: int) -> Any:
    """Return the loop (source, (k, n, width), facts, values, exponents, _, _, codes) -> flags for any processor.

    It decodes 8-bit codes of `terms` terms from k on and `width` columns from n on. values, exponents: (terms,
    columns), written with float32 bits, int32, and exponents, int8; zeros beyond K and `width`. source: (K, N) codes,
    or (N, K) if `facts` says that they are transposed. facts: int32 array with the layout of the codes, the fields of
    CodeFacts. codes: a uint8 buffer (terms, columns). flags: SPECIAL if a code is NaN or Inf, else 0.
    """
    gather = gatherer(terms)

    def fill(source: Any, place: Any, facts: Any, values: Any, exponents: Any, _b: Any, _eb: Any, codes: Any) -> Any:
        (k, n, width), turned = place, code_facts(facts).turned
        announce(source, k, n, i64(terms), i64(codes.shape[1]), turned)
        gather(source, k, n, width, turned, codes)
        special = _decode_codes(codes.reshape(-1), facts, values.reshape(-1), exponents.reshape(-1))
        return i32(SPECIAL) if special else i32(0)

    return inner_loop(fill)
