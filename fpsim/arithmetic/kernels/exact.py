"""CPU loops of the arithmetic over the integer core (fpsim/core): every format, mode, policy and flag.

Codes are uint64, and formats, modes and policies are passed as numbers, so that each operation compiles once. random:
uint32 per element, empty unless stochastic. flags: uint8, bits of `fp.Flags`. la, lb: constants for reading codes, the
fields of an UnpackLayout; out: those for writing, of an EncodeLayout; layouts: such constants as rows, those of the
operands first. mode: a Rounding. rules: bits that decide flags (LOSES_INFINITY etc. of `fpsim.core.pack`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core import exact_arithmetic, neighbour
from fpsim.core.encode import encode_fields
from fpsim.core.number import NAN, unpack, unpack_fields
from fpsim.core.operations import BINARY, COMPARISONS, UNARY
from fpsim.core.pack import INVALID, NO_FLAG, pack
from fpsim.runtime.compile import kernel

u64 = np.uint64
NO_WORD = u64(0)


# ---- operations whose result is rounded


@cache
def unary_kernel(name: str) -> Any:
    """Return the kernel (a, random, codes, flags, layouts, mode, rules) -> None that computes one function of a.

    name: "sqrt", "round_to_integral" or "convert". The kernel writes codes and flags. All arrays but layouts are 1-D.
    a, codes: uint64. random: uint32 per element, empty unless stochastic. flags: uint8, bits of `fp.Flags`.
    layouts: uint64; its rows are constants of formats: UnpackLayout, for reading a; EncodeLayout, for rounding the
    result. mode: a Rounding.
    rules: a sum of LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED, which decide flags as `fpsim.core.pack` says.
    """
    operation = UNARY[name]

    def unary(a: Any, random: Any, codes: Any, flags: Any, layouts: Any, mode: int, rules: Any) -> None:
        fa, f = unpack_fields(layouts[0]), encode_fields(layouts[1])
        for i in range(codes.size):
            word = u64(random[i]) if random.size > 0 else NO_WORD
            exact, raised = operation(unpack(a[i], fa), word, f.random_mask, mode)
            codes[i], flags[i] = pack(exact, raised, word, f, mode, rules)

    return kernel(unary)


@cache
def binary_kernel(name: str) -> Any:
    """Return the kernel (a, b, random, codes, flags, layouts, mode, rules) -> None that computes one operation.

    name: a key of `fpsim.core.operations.BINARY`, such as "add". The kernel writes codes and flags. All arrays but
    layouts are 1-D.
    a, b, codes: uint64. random: uint32 per element, empty unless stochastic. flags: uint8, bits of `fp.Flags`.
    layouts: uint64; its rows are constants of formats: UnpackLayouts, for reading a and b; EncodeLayout, for rounding
    the result. mode: a Rounding.
    rules: a sum of LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED, which decide flags as `fpsim.core.pack` says.
    """
    operation = BINARY[name]

    def binary(a: Any, b: Any, random: Any, codes: Any, flags: Any, layouts: Any, mode: int, rules: Any) -> None:
        fa, fb, f = unpack_fields(layouts[0]), unpack_fields(layouts[1]), encode_fields(layouts[2])
        for i in range(codes.size):
            word = u64(random[i]) if random.size > 0 else NO_WORD
            exact, raised = operation(unpack(a[i], fa), unpack(b[i], fb), mode)
            codes[i], flags[i] = pack(exact, raised, word, f, mode, rules)

    return kernel(binary)


@cache
def fma_kernel() -> Any:
    """Return the kernel (a, b, c, random, codes, flags, layouts, mode, rules) -> None that computes a * b + c.

    It writes codes and flags. All arrays but layouts are 1-D. a, b, c, codes: uint64. random: uint32, empty unless
    stochastic. flags: uint8, bits of `fp.Flags`.
    layouts: uint64; its rows are constants of formats: UnpackLayouts, for reading a, b and c; EncodeLayout, for
    rounding the result. mode: a Rounding.
    rules: a sum of LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED, which decide flags as `fpsim.core.pack` says.
    """

    def fma(a: Any, b: Any, c: Any, random: Any, codes: Any, flags: Any, layouts: Any, mode: int, rules: Any) -> None:
        fa, fb, fc = unpack_fields(layouts[0]), unpack_fields(layouts[1]), unpack_fields(layouts[2])
        f = encode_fields(layouts[3])
        for i in range(codes.size):
            word = u64(random[i]) if random.size > 0 else NO_WORD
            exact, raised = exact_arithmetic.fma(unpack(a[i], fa), unpack(b[i], fb), unpack(c[i], fc), mode)
            codes[i], flags[i] = pack(exact, raised, word, f, mode, rules)

    return kernel(fma)


# ---- operations whose result is not rounded


@cache
def comparison_kernel(name: str) -> Any:
    """Return the kernel (a, b, results, flags, la, lb) -> None that compares codes of two formats.

    name: "equal", "less" or "less_equal". It writes results and flags. a, b: 1-D uint64 codes. results: uint64, 1 for
    True, 0 for False and for NaN operands. flags: uint8, bits of `fp.Flags`. la, lb: uint64, constants for reading a
    and b: the fields of their formats' UnpackLayouts.
    """
    compare, quiet = COMPARISONS[name], name == "equal"

    def comparison(a: Any, b: Any, results: Any, flags: Any, la: Any, lb: Any) -> None:
        fa, fb = unpack_fields(la), unpack_fields(lb)
        for i in range(results.size):
            x, y = unpack(a[i], fa), unpack(b[i], fb)
            nan = (x.kind >= u64(NAN)) | (y.kind >= u64(NAN))
            raised = u64(exact_arithmetic.signals(x) | exact_arithmetic.signals(y))
            results[i] = u64((not nan) & compare(x, y))
            flags[i] = raised if quiet else (INVALID if nan else NO_FLAG)

    return kernel(comparison)


@cache
def from_integer_kernel() -> Any:
    """Return the kernel (n, random, codes, flags, signed, out, mode, rules) -> None that rounds integers to a format.

    It writes codes and flags. n: 1-D uint64, two's complement if signed is 1. random: uint32, empty unless stochastic.
    codes: uint64. flags: uint8, bits of `fp.Flags`. out: uint64, constants for rounding: the fields of the format's
    EncodeLayout. mode: a Rounding.
    rules: a sum of LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED, which decide flags as `fpsim.core.pack` says.
    """

    def from_integer(n: Any, random: Any, codes: Any, flags: Any, signed: Any, out: Any, mode: int, rules: Any) -> None:
        f = encode_fields(out)
        for i in range(codes.size):
            word = u64(random[i]) if random.size > 0 else NO_WORD
            negative = u64(u64(n[i] >> u64(63)) & signed)
            magnitude = u64(NO_WORD - n[i]) if negative != NO_WORD else n[i]
            exact = exact_arithmetic.from_integer(negative, magnitude)
            codes[i], flags[i] = pack(exact, NO_FLAG, word, f, mode, rules)

    return kernel(from_integer)


@cache
def to_integer_kernel() -> Any:
    """Return the kernel (a, random, n, flags, la, lowest, highest, mask, mode) -> None that rounds to integers.

    It writes n and flags. a: 1-D uint64 codes. random: uint32, empty unless stochastic. mask: uint64, the bits of a
    random number that are used. n: uint64 results, two's complement, clamped to -lowest .. highest (both uint64).
    flags: uint8, bits of `fp.Flags`. la: uint64, constants for reading a: the fields of its format's UnpackLayout.
    mode: a Rounding.
    """

    def to_integer(
        a: Any, random: Any, n: Any, flags: Any, la: Any, lowest: Any, highest: Any, mask: Any, mode: int
    ) -> None:
        fa = unpack_fields(la)
        for i in range(n.size):
            word = u64(random[i]) if random.size > 0 else NO_WORD
            n[i], flags[i] = exact_arithmetic.to_integer(unpack(a[i], fa), lowest, highest, word, mask, mode)

    return kernel(to_integer)


@cache
def neighbour_kernel() -> Any:
    """Return the kernel (a, downward, codes, flags, la, out) -> None that writes codes of the next values.

    a, codes: 1-D uint64. downward: 1 for the next smaller value, 0 for the next larger. flags: uint8, written too:
    INVALID for signalling NaNs. la, out: uint64, constants for reading and for writing codes: the fields of the
    format's UnpackLayout and EncodeLayout.
    """

    def next_code(a: Any, downward: Any, codes: Any, flags: Any, la: Any, out: Any) -> None:
        fa, f = unpack_fields(la), encode_fields(out)
        for i in range(codes.size):
            codes[i], flags[i] = neighbour.neighbour(a[i], unpack(a[i], fa), downward, fa, f)

    return kernel(next_code)


@cache
def classify_kernel() -> Any:
    """Return the kernel (a, classes, la) -> None that writes the `fpsim.FloatClass` of codes to `classes`.

    a: 1-D uint64 codes. classes: integers. la: uint64, constants for reading a: the fields of its format's
    UnpackLayout.
    """

    def classes(a: Any, target: Any, la: Any) -> None:
        fa = unpack_fields(la)
        for i in range(target.size):
            target[i] = neighbour.classify(a[i], unpack(a[i], fa), fa)

    return kernel(classes)


@cache
def sign_kernel(name: str) -> Any:
    """Return the kernel (a, codes, la, out) -> None that writes the codes of -a (name "negative") or |a| ("absolute").

    a, codes: 1-D uint64. la, out: uint64, constants for reading and for writing codes: the fields of the format's
    UnpackLayout and EncodeLayout.
    """
    negates = name == "negative"

    def sign(a: Any, codes: Any, la: Any, out: Any) -> None:
        fa, f = unpack_fields(la), encode_fields(out)
        for i in range(codes.size):
            negated = neighbour.negative(a[i], unpack(a[i], fa), fa, f)
            codes[i] = negated if negates else neighbour.absolute(a[i], fa)

    return kernel(sign)
