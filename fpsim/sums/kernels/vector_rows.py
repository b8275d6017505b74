"""Vector code that adds products to sums of four rows in registers, with the bits of float32_rows.py's step ROUNDED.

The processor must have AVX-512 or AVX2 (`has_avx2`). Measured: docs/performance.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types
from numba.extending import intrinsic

from fpsim.runtime import vectors as v

ROWS = 4
MANY = {True: 4, False: 1}  # vectors of columns at a time, by whether there is AVX-512
MAGNITUDE = 0x7FFFFFFF


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit and return x * y - z of vectors of float32, rounded once; builder: llvmlite's IRBuilder."""
    return v.call(builder, "llvm.fma.v16f32", v.FLOATS, x, y, builder.fneg(z))


def _step(builder: Any, t: Any, of_a: tuple[Any, Any], b: Any, size: Any, facts: Any) -> Any:
    """Emit and return the vectors of new sums t + a * b; product and sum are each rounded to 24 - s bits.

    t, a and b are vectors of 16 float32; 24 - s is the precision of the format of the sums, so BF16 has s = 16. The
    bits are those of float32_rows._rounded.

    builder: llvmlite's IRBuilder. t: the sums so far. of_a: (|a| * (2**s + 1), a). b: the other factor. size: |b|.
    facts: (2**s, 2**s - 1, the smallest number that may be added to a product and subtracted again to round it).
    """
    scale, less, least = facts
    large = builder.fmul(of_a[0], size)
    large = builder.select(builder.fcmp_ordered(">", large, least), large, least)
    total = builder.fadd(t, builder.fadd(large, _fused(builder, of_a[1], b, large)))
    return _fused(builder, scale, total, builder.fmul(total, less))


def _columns(builder: Any, places: Any, start: Any, vectors: int, count: Any, facts: Any) -> None:
    """Emit code that adds a @ b to the sums t in memory, for four rows of a and some columns of b.

    builder: llvmlite's IRBuilder. places: (addresses of the rows of t; two lists of addresses, those of the rows of
    |a| * (2**s + 1) and of a; address of the first row of b; bytes per row of b and t). start: byte offset of the
    first column in a row. vectors: number of vectors of 16 columns. count: number of terms. facts, s: as for `_step`.
    """
    t_rows, factors, b, size = places
    offsets = [builder.add(start, v.LONG(i * v.SIZE)) for i in range(vectors)]
    of_sums = [(row, offset) for row in t_rows for offset in offsets]

    def term(k: Any, sums: list[Any]) -> list[Any]:
        b_row, place = builder.mul(k, size), builder.mul(k, v.LONG(4))
        values = [v.load(builder, b, builder.add(b_row, offset), v.FLOATS) for offset in offsets]
        sizes = [_magnitude(builder, value) for value in values]
        new = []
        for row in range(ROWS):
            x, y = (v.everywhere(builder, v.load(builder, of[row], place, v.SINGLE), v.FLOATS) for of in factors)
            for total, value, magnitude in zip(sums[row * vectors :], values, sizes, strict=False):
                new.append(_step(builder, total, (x, y), value, magnitude, facts))
        return new

    last = v.repeated(builder, count, [v.load(builder, row, offset, v.FLOATS) for row, offset in of_sums], term)
    for total, (row, offset) in zip(last, of_sums, strict=True):
        v.store(builder, total, row, offset)


@cache
def vector_rows(avx512: bool) -> Any:
    """Return numba's intrinsic `(t, r, sizes, a, b, first, scale, least)`, which adds a @ b to rows r .. r + 3 of t.

    Each product and each sum is rounded to 24 - s bits, the precision of the format of the sums (s = 16 for BF16).
    To round a product, a larger number is added to it and subtracted again.

    avx512: compile for AVX-512, else AVX2. t: (rows, width) float32, width a multiple of 16, changed in place. sizes:
    |a| * (2**s + 1). a: (4, terms) float32, terms >= 1. b: (K, width) float32, of which `terms` rows from `first` on
    are used. scale: 2**s. least: the smallest number that is added and subtracted.
    """

    def rows(_typing: Any, t: Any, r: Any, sizes: Any, a: Any, b: Any, first: Any, scale: Any, least: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            first, scale, least = args[5:]
            sums, terms = (context.make_array(sig.args[i])(context, builder, args[i]) for i in (0, 3))
            count = builder.extract_value(terms.shape, 1)
            size = builder.mul(builder.extract_value(sums.shape, 1), v.LONG(4))

            def at(i: int, row: Any) -> Any:
                return v.element(context, builder, sig.args[i], args[i], row, v.LONG(0))

            t_rows = [at(0, builder.add(args[1], v.LONG(row))) for row in range(ROWS)]
            places = t_rows, [[at(i, v.LONG(row)) for row in range(ROWS)] for i in (2, 3)], at(4, first), size
            less = builder.fsub(scale, v.SINGLE(1.0))
            facts = [v.everywhere(builder, x, v.FLOATS) for x in (scale, less, least)]
            many = v.LONG(MANY[avx512] * v.SIZE)
            groups = builder.udiv(size, many)
            done = builder.mul(groups, many)

            def group(i: Any) -> None:
                _columns(builder, places, builder.mul(i, many), MANY[avx512], count, facts)

            def one(i: Any) -> None:
                start = builder.add(done, builder.mul(i, v.LONG(v.SIZE)))
                _columns(builder, places, start, 1, count, facts)

            v.over_range(builder, groups, group)
            v.over_range(builder, builder.udiv(builder.sub(size, done), v.LONG(v.SIZE)), one)
            return context.get_dummy_value()

        return types.void(t, r, sizes, a, b, first, scale, least), build

    return intrinsic(rows)


def _magnitude(builder: Any, x: Any) -> Any:
    """Emit and return |x| of a vector of float32; builder: llvmlite's IRBuilder."""
    bits = builder.and_(builder.bitcast(x, v.INTS), v.constant(MAGNITUDE, v.INTS))
    return builder.bitcast(bits, v.FLOATS)
