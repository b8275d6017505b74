"""GPU kernels of arithmetic by the integer functions of fpsim/core: every format, rounding mode and flag."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.core import exact_arithmetic
from fpsim.core.encode import encode_fields
from fpsim.core.neighbour import absolute, classify, negative, neighbour
from fpsim.core.number import NAN, unpack, unpack_fields
from fpsim.core.operations import BINARY, COMPARISONS, UNARY
from fpsim.core.pack import INVALID, NO_FLAG, pack
from fpsim.core.philox import random_word
from fpsim.formats.rounding import Rounding
from fpsim.gpu.device.launch import gpu_kernel

u64 = np.uint64

STOCHASTIC = int(Rounding.STOCHASTIC)


@cache
def rounding_kernel(name: str, mode: int) -> Any:
    """Return the GPU kernel of an operation that rounds, such as "add", "sqrt" or "fma".

    Its arguments are (a, b, c, steps, codes, flags, layouts, rules, seed).

    Args:
      name: the operation.
      mode: number of the rounding mode.

    Arguments of the kernel:
      a, b, c: 1-D codes of the operands; those that the operation does not have are not read.
      steps: for each operand, the distance from one element to the next: 1, or 0 for a single element.
      codes, flags: receive the codes and, as uint8, the flags of the results; an empty `flags` is not written.
      layouts: rows of integers: the UnpackLayouts that decode a, b and c, and the EncodeLayout of the result.
      rules: sum of LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED of fpsim/core/pack.py, which decide flags.
      seed: low and high 32 bits of the seed of stochastic rounding.
    """
    is_unary, is_binary = name in UNARY, name in BINARY
    unary: Any = UNARY.get(name)
    binary: Any = BINARY.get(name)

    def compute(
        a: Any, b: Any, c: Any, steps: Any, codes: Any, flags: Any, layouts: Any, rules: Any, seed: Any
    ) -> None:
        (sa, sb, sc), (k0, k1) = steps, seed
        fa, fb, fc = unpack_fields(layouts[0]), unpack_fields(layouts[1]), unpack_fields(layouts[2])
        f = encode_fields(layouts[3])
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            word = u64(random_word(u64(i), k0, k1)) if mode == STOCHASTIC else u64(0)
            x = unpack(u64(a[i * sa]), fa)
            if is_unary:
                exact, raised = unary(x, word, f.random_mask, mode)
            elif is_binary:
                exact, raised = binary(x, unpack(u64(b[i * sb]), fb), mode)
            else:
                exact, raised = exact_arithmetic.fma(x, unpack(u64(b[i * sb]), fb), unpack(u64(c[i * sc]), fc), mode)
            code, raised_flags = pack(exact, raised, word, f, mode, rules)
            codes[i] = code
            if flags.size > 0:
                flags[i] = raised_flags

    return gpu_kernel(compute)


@cache
def comparison_kernel(name: str) -> Any:
    """Return the GPU kernel (a, b, sa, sb, results, flags, la, lb) -> None that compares codes.

    name: "equal", "less" or "less_equal". a, b: 1-D codes. sa, sb: distance from one element of a or b to the next: 1,
    or 0 for a single element. results: uint8, receives 1 for True, 0 for False. flags: receives the flags as uint8,
    unless it is empty. la, lb: the UnpackLayouts, constants that decode a and b, as integers.
    """
    compare, quiet = COMPARISONS[name], name == "equal"

    def compute(a: Any, b: Any, sa: Any, sb: Any, results: Any, flags: Any, la: Any, lb: Any) -> None:
        fa, fb = unpack_fields(la), unpack_fields(lb)
        for i in range(cuda.grid(1), results.size, cuda.gridsize(1)):
            x, y = unpack(u64(a[i * sa]), fa), unpack(u64(b[i * sb]), fb)
            nan = (x.kind >= u64(NAN)) | (y.kind >= u64(NAN))
            results[i] = (not nan) & compare(x, y)
            if flags.size > 0:
                raised = u64(exact_arithmetic.signals(x) | exact_arithmetic.signals(y))
                flags[i] = raised if quiet else (INVALID if nan else NO_FLAG)

    return gpu_kernel(compute)


@cache
def neighbour_kernel(downward: int) -> Any:
    """Return the GPU kernel (a, codes, flags, la, out) -> None of next_up (downward 0) or next_down (downward 1).

    a: 1-D codes. codes: receives the codes of the neighbours. flags: receives the flags as uint8, unless it is empty.
    la, out: the constants that decode and encode the format, an UnpackLayout and an EncodeLayout, as integers.
    """

    def compute(a: Any, codes: Any, flags: Any, la: Any, out: Any) -> None:
        fa, f = unpack_fields(la), encode_fields(out)
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            x = u64(a[i])
            code, raised_flags = neighbour(x, unpack(x, fa), u64(downward), fa, f)
            codes[i] = code
            if flags.size > 0:
                flags[i] = raised_flags

    return gpu_kernel(compute)


@cache
def sign_kernel(name: str) -> Any:
    """Return the GPU kernel (a, results, la, out) -> None of the operation `name`.

    name: "negative", "absolute" or "classify". a: 1-D unsigned integers, codes. results: 1-D unsigned integers, which
    receive the codes of -a or |a|. For "classify" they receive the class of each code, a `fpsim.FloatClass` as a number
    from 0 (-Inf) to 9 (a quiet NaN). la, out: the constants that decode and encode the format, the fields of an
    UnpackLayout and an EncodeLayout.
    """

    def negate(a: Any, codes: Any, la: Any, out: Any) -> None:
        fa, f = unpack_fields(la), encode_fields(out)
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            x = u64(a[i])
            codes[i] = negative(x, unpack(x, fa), fa, f)

    def drop_sign(a: Any, codes: Any, la: Any, out: Any) -> None:
        fa = unpack_fields(la)
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            codes[i] = absolute(u64(a[i]), fa)

    def find_class(a: Any, classes: Any, la: Any, out: Any) -> None:
        fa = unpack_fields(la)
        for i in range(cuda.grid(1), classes.size, cuda.gridsize(1)):
            x = u64(a[i])
            classes[i] = classify(x, unpack(x, fa), fa)

    return gpu_kernel({"negative": negate, "absolute": drop_sign, "classify": find_class}[name])


@cache
def from_integer_kernel(mode: int) -> Any:
    """Return the GPU kernel (n, codes, flags, sign, out, rules, seed) -> None that rounds integers to a format.

    mode: number of the rounding mode. n: 1-D bits of integers of up to 64 bits, unsigned or in two's complement. sign:
    uint64, the integers' sign bit; 0 if they are unsigned. codes: receives the codes. flags: receives the flags as
    uint8, unless it is empty. out: the constants that encode the format, an EncodeLayout, as integers. rules: sum of
    LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED of fpsim/core/pack.py, which decide flags. seed: low and high 32
    bits of the seed of stochastic rounding.
    """

    def compute(n: Any, codes: Any, flags: Any, sign: Any, out: Any, rules: Any, seed: Any) -> None:
        f, (k0, k1) = encode_fields(out), seed
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            word = u64(random_word(u64(i), k0, k1)) if mode == STOCHASTIC else u64(0)
            integer = u64(n[i])
            below_zero = u64(u64(integer & sign) != u64(0))
            # in two's complement, the magnitude of a negative number is twice the sign bit minus the word
            magnitude = u64(u64(sign + sign) - integer) if below_zero != u64(0) else integer
            code, raised_flags = pack(
                exact_arithmetic.from_integer(below_zero, magnitude), NO_FLAG, word, f, mode, rules
            )
            codes[i] = code
            if flags.size > 0:
                flags[i] = raised_flags

    return gpu_kernel(compute)


@cache
def to_integer_kernel(mode: int) -> Any:
    """Return the GPU kernel of to_int, which rounds codes to integers.

    Its arguments are (a, n, flags, la, lowest, highest, random_mask, mask, seed).

    mode: number of the rounding mode. a: 1-D codes. n: 1-D integers of 8 to 64 bits, which receive the bits of the
    results. flags: receives the flags as uint8, unless it is empty. la: the constants that decode a, an UnpackLayout,
    as integers. lowest, highest: largest magnitudes of negative and of positive results. random_mask: mask of the
    random bits that stochastic rounding uses. mask: mask of the bits of a result. seed: low and high 32 bits of the
    seed of stochastic rounding.
    """

    def compute(
        a: Any, n: Any, flags: Any, la: Any, lowest: Any, highest: Any, random_mask: Any, mask: Any, seed: Any
    ) -> None:
        fa, (k0, k1) = unpack_fields(la), seed
        for i in range(cuda.grid(1), n.size, cuda.gridsize(1)):
            word = u64(random_word(u64(i), k0, k1)) if mode == STOCHASTIC else u64(0)
            x = unpack(u64(a[i]), fa)
            integer, raised_flags = exact_arithmetic.to_integer(x, lowest, highest, word, random_mask, mode)
            n[i] = u64(integer & mask)
            if flags.size > 0:
                flags[i] = raised_flags

    return gpu_kernel(compute)


@cache
def union_kernel() -> Any:
    """Return the GPU kernel (flags, union) -> None that sets union[0] to the bitwise or of all elements of `flags`.

    flags: 1-D uint8. union: uint32 of one element, which the caller has set to 0.
    """

    def unite(flags: Any, union: Any) -> None:
        word = np.uint32(0)
        for i in range(cuda.grid(1), flags.size, cuda.gridsize(1)):
            word = np.uint32(word | np.uint32(flags[i]))
        if word != np.uint32(0):
            cuda.atomic.or_(union, 0, word)

    return gpu_kernel(unite)
