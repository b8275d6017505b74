"""A tile of an integer product in vectors: some rows of a times a panel (64 columns) of b, two int16 terms at a time.

For processors with AVX2. LLVM compiles a pair of products to VPMADDWD, or to VPDPWSSD where the processor has it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fpsim.runtime import vectors as v

COLUMNS = 64  # of a panel
GROUPS = COLUMNS // v.WIDTH
HIGHEST = 32767  # of int16
ROWS = {"avx512": 4, "avx2": 2}  # of a tile, whose sums fit the registers
PAIRS, WIDE = v.vector(v.HALF, 2 * v.WIDTH), v.vector(v.WORD, 2 * v.WIDTH)
WRAPS, SIGNED, UNSIGNED = "", "sadd", "uadd"  # what becomes of a step's sum: wrapped, or saturated as int32 or uint32
NARROW = "narrow"  # sums of two products saturate as int16, and their sums wrap


def _pair_products(builder: Any, x: Any, y: Any, cut: str) -> Any:
    """Emit x0 * y0 + x1 * y1 for pairs of 16-bit integers, and return the vector of 16 32-bit sums.

    x, y: vectors of 32-bit integers that hold a pair each. cut: NARROW saturates the sums to int16; other values do
    nothing. builder: llvmlite's IRBuilder.
    """
    wide = builder.mul(*(builder.sext(builder.bitcast(z, PAIRS), WIDE) for z in (x, y)))
    undefined = ir.Constant(WIDE, ir.Undefined)
    even, odd = (
        builder.shuffle_vector(wide, undefined, ir.Constant(v.INTS, [2 * i + first for i in range(v.WIDTH)]))
        for first in (0, 1)
    )
    pair = builder.add(even, odd)
    if cut != NARROW:
        return pair
    return v.larger(builder, v.smaller(builder, pair, v.constant(HIGHEST, v.INTS)), v.constant(-HIGHEST - 1, v.INTS))


@cache
def tile_of(rows: int, groups: int, cut: str) -> Any:
    """Return the intrinsic (a, b, out, row, column, steps, pairs) -> None that adds products to a block of `out`.

    It adds `steps` steps of `pairs` pairs of terms, in ascending order, for `rows` rows from `row` on and 16 * `groups`
    columns from `column` on. cut: what becomes of a step's sum that leaves 32 bits. WRAPS: it wraps. SIGNED, UNSIGNED:
    it saturates as int32 or uint32. NARROW: it wraps, but the sums of pairs of products saturate as int16.

    a: (M, steps * pairs) uint32, two int16 each. b: (steps * pairs, COLUMNS) uint32, two int16 each. out: (M, COLUMNS)
    int32.
    """

    def tile(_typing: Any, a: Any, b: Any, out: Any, row: Any, column: Any, steps: Any, pairs: Any) -> Any:
        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            of_a, of_b, of_out, row, column, steps, pairs = args
            left = [
                v.element(context, builder, sig.args[0], of_a, builder.add(row, v.LONG(i)), v.LONG(0))
                for i in range(rows)
            ]
            right = v.element(context, builder, sig.args[1], of_b, v.LONG(0), column)
            places = [
                v.element(context, builder, sig.args[2], of_out, builder.add(row, v.LONG(i)), column)
                for i in range(rows)
            ]
            nothing = v.constant(0, v.INTS)

            def one_pair(first: Any, k: Any, sums: list[Any]) -> list[Any]:
                k = builder.add(first, k)
                panel = v.row_at(builder, right, k, 4 * COLUMNS)
                columns = [v.load(builder, panel, g * v.SIZE, v.INTS) for g in range(groups)]
                new = []
                for i in range(rows):
                    word = v.load(builder, left[i], builder.mul(k, v.LONG(4)), v.WORD)
                    x = v.everywhere(builder, word, v.INTS)
                    new += [builder.add(sums[i * groups + g], _pair_products(builder, x, columns[g], cut))
                            for g in range(groups)]  # fmt: skip
                return new

            sums = [v.load(builder, place, g * v.SIZE, v.INTS) for place in places for g in range(groups)]
            if cut in (WRAPS, NARROW):
                count = builder.mul(steps, pairs)
                sums = v.repeated(builder, count, sums, lambda k, so_far: one_pair(v.LONG(0), k, so_far))
            else:

                def one_step(s: Any, so_far: list[Any]) -> list[Any]:
                    first = builder.mul(s, pairs)
                    parts = v.repeated(builder, pairs, [nothing] * len(sums), lambda k, p: one_pair(first, k, p))
                    name = f"llvm.{cut}.sat.v{v.WIDTH}i32"
                    return [v.call(builder, name, v.INTS, x, y) for x, y in zip(so_far, parts, strict=True)]

                sums = v.repeated(builder, steps, sums, one_step)
            for i, place in enumerate(places):
                for g in range(groups):
                    v.store(builder, sums[i * groups + g], place, g * v.SIZE)
            return context.get_dummy_value()

        return types.void(a, b, out, row, column, steps, pairs), build

    return intrinsic(tile)
