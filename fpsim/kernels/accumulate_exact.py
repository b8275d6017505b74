"""CPU loop of the exact accumulator: every product is added to a long sum, which is rounded once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core import arithmetic, long_sum, term
from fpsim.core.encode import encode_fields
from fpsim.core.jit import kernel, shared
from fpsim.core.number import infinite, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.philox import philox4x32
from fpsim.core.rounding import DOWN, STOCHASTIC

i64, u64 = np.int64, np.uint64

PLUS_ZERO, MINUS_ZERO, NO_ZERO = i64(1), i64(2), i64(4)  # which terms a sum had: bits

_term_of, _pack, _total = shared(term.term_of), shared(pack), shared(long_sum.total)
_add_term, _add_product = shared(long_sum.add_term), shared(long_sum.add_product)
_specials_of, _specials_of_product = shared(term.specials_of), shared(term.specials_of_product)
_philox = shared(philox4x32)


@cache
def exact_kernel() -> Any:
    """The loop over outputs `first .. stop`, in C order.

    `(a, b, b's rows per row of a, c, out, first, stop, digits of the sum, their lowest exponent, layouts of a, b, c,
    target, rules, mode, low and high word of the seed)`: operands as in `sequence_kernel`, but codes. An a whose layout
    is all zero stands for ones.
    """

    def exact(
        a: Any, b: Any, rows: int, c: Any, out: Any, first: int, stop: int, length: int, lowest: int,
        la: Any, lb: Any, lc: Any, target: Any, rules: Any, mode: int, k0: Any, k1: Any,
    ) -> None:  # fmt: skip
        fa, fb, fc, f = unpack_fields(la), unpack_fields(lb), unpack_fields(lc), encode_fields(target)
        columns, origin = b.shape[1], i64(lowest)
        a_bits, b_bits = i64(fa.mantissa_bits), i64(fb.mantissa_bits)
        products = la[0] != u64(0)
        digits = np.zeros(length, np.int64)
        for output in range(first, stop):
            i, j = output // columns, output % columns
            digits[:] = 0
            met, zeros = term.NO_SPECIAL, i64(0)
            for k in range(a.shape[1]):
                y = _term_of(b[i * rows + k, j], fb)
                if products:
                    x = _term_of(a[i, k], fa)
                    met = i64(met | _specials_of_product(x, y))
                    is_zero = (x.significand == i64(0)) | (y.significand == i64(0))
                    negative = i64(x.negative ^ y.negative)
                    _add_product(digits, origin, x, y, i64(a_bits + b_bits))
                else:
                    met = i64(met | _specials_of(y))
                    is_zero, negative = y.significand == i64(0), y.negative
                    _add_term(digits, origin, y, b_bits)
                zero = MINUS_ZERO if negative != i64(0) else PLUS_ZERO
                zeros = i64(zeros | (zero if is_zero else NO_ZERO))
            if c.size > 0:
                z = _term_of(c[i, j], fc)
                met = i64(met | _specials_of(z))
                _add_term(digits, origin, z, i64(fc.mantissa_bits))
                zero = MINUS_ZERO if z.negative != i64(0) else PLUS_ZERO
                zeros = i64(zeros | (zero if z.significand == i64(0) else NO_ZERO))
            down = u64(mode == DOWN)
            sign = u64(zeros == MINUS_ZERO) if (zeros == MINUS_ZERO) | (zeros == PLUS_ZERO) else down
            value = _total(digits, origin, sign)
            if met != term.NO_SPECIAL:
                plus, minus = (met & term.HAS_PLUS) != i64(0), (met & term.HAS_MINUS) != i64(0)
                value = infinite(u64(minus))
                if ((met & term.HAS_NAN) != i64(0)) | (plus & minus):
                    value = arithmetic.nan()
            word = u64(0)
            if mode == STOCHASTIC:
                counter = u64(output) >> u64(2)
                words = _philox(counter, u64(counter >> u64(32)), u64(0), u64(0), k0, k1)
                word = u64(words[0])
                word = u64(words[1]) if output % 4 == 1 else word
                word = u64(words[2]) if output % 4 == 2 else word
                word = u64(words[3]) if output % 4 == 3 else word
            out[i, j], _ = _pack(value, NO_FLAG, word, f, mode, rules)

    return kernel(exact)
