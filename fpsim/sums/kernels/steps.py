"""Kernels that add the terms of up to TILE_COLUMNS (256) sums at once: products and additions, each rounded once.

A running sum is a 64-bit word, in one of three representations. The first is the value of the sum in float64, rounded
to the format in a mode that is compiled in ("nearest", "up" and so on) or passed ("any"). The second is a sum in FP64
itself ("double"). The third is a code that is added in integer arithmetic ("core"). Each has the same three functions
(multiply, add, fused), so that the orders of summation in `core/sums/sum_order.py` are written once. The pattern of a
float64 is its bits as uint64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.arithmetic.kernels.float_arithmetic import real_width
from fpsim.core.decode import decode_bits_64, decode_fields
from fpsim.core.encode import FULL, encode_bits_64, encode_fields
from fpsim.core.rounding import DOWN, NEAREST_EVEN, STOCHASTIC, UP
from fpsim.core.sums.running_sum import DECODING, code_lanes
from fpsim.core.sums.sum_order import AdditionTargets, LaneSteps, Rows, SumTile, Targets
from fpsim.formats.rounding import Rounding
from fpsim.runtime.compile import inner_loop, kernel, scalar
from fpsim.runtime.float_steps import fused as fma
from fpsim.sums.kernels.settle import ONE_LEFT, SETTLING, Settling, settled, settling_fields

f64, u64 = np.float64, np.uint64

TILE_COLUMNS = 256  # long enough that calls of the loops, of 100 cycles or so, do not count
FIXED_MODES = {
    "nearest": NEAREST_EVEN, "toward_zero": int(Rounding.TOWARD_ZERO), "up": UP, "down": DOWN, "stochastic": STOCHASTIC,
}  # fmt: skip


@cache
def lanes(way: str) -> LaneSteps:
    """Return the functions multiply, add and fused for one representation of sums; each processes many sums (lanes).

    The result is cached. way: "core": sums are codes; "double": they are in FP64; "nearest", "toward_zero", "up",
    "down" or "stochastic": values in float64 that are rounded to a format in this mode; "any": the same in a mode that
    the functions are passed.
    """
    if way == "core":
        return LaneSteps(*map(kernel, code_lanes()))
    return _double_lanes() if way == "double" else _float_lanes(way)


# ---- a format's values as float64


_w = real_width(64)
_add_odd, _without_sign = _w.add, _w.without_sign


def _float_lanes(way: str) -> LaneSteps:
    """Return the functions multiply, add and fused for sums whose values are held as float64 and rounded to a format.

    way: the mode that is compiled in, "nearest", "toward_zero", "up", "down" or "stochastic"; "any": the functions take
    it as an argument.
    """
    settles, fixed_mode = way in FIXED_MODES, FIXED_MODES.get(way, NEAREST_EVEN)

    def encode_row(t: Any, i: int, n: int, words: Any, w: int, target: Any, mode: int) -> None:
        """Round t[i, :n], float64 patterns, in place by encoding and decoding them; rounded values do not change.

        words[w, j]: 32-bit random number for t[i, j]. target: constants of the format that sums/plan.py makes.
        mode: a Rounding, used if the mode is not compiled in.
        """
        f, g = encode_fields(target), decode_fields(target[DECODING:])
        how = fixed_mode if settles else mode
        for j in range(n):
            code = u64(encode_bits_64(_without_sign(t[i, j]), u64(words[w, j]), f, how, FULL))
            t[i, j] = decode_bits_64(code, g)

    encode_row = inner_loop(encode_row)

    @scalar
    def rounded(bits: Any, word: Any, f: Settling) -> Any:
        """Return (pattern rounded to the format, 0), or (bits, 1) if encode_row must round it.

        bits: pattern of a float64. word: 32-bit random number. f: constants of the format.
        """
        return settled(bits, u64(word), f, fixed_mode) if settles else (bits, ONE_LEFT)

    def multiply(
        x: Rows, k: int, tile: SumTile, t: Any, i: int, words: Any, w: int, f: Targets, mode: int
    ) -> None:  # fmt: skip
        b, row, factor = x.b, tile.i * x.step + k, f64(u64(x.a[tile.i, k]).view(f64))
        settling, left = settling_fields(f.inner[SETTLING:]), u64(0)
        for j in range(tile.n):
            product = u64(f64(factor * u64(b[row, tile.j + j]).view(f64)).view(u64))
            t[i, j], stays = rounded(product, words[w, j], settling)
            left = u64(left | stays)
        if left != u64(0):
            encode_row(t, i, tile.n, words, w, f.inner, mode)

    def add(t: Any, i: int, x: Any, k: int, n: int, words: Any, w: int, targets: AdditionTargets, mode: int) -> None:
        target = targets.total
        settling, left = settling_fields(target[SETTLING:]), u64(0)
        how = fixed_mode if settles else mode
        for j in range(n):
            t[i, j], stays = rounded(_add_odd(t[i, j], x[k, j], how), words[w, j], settling)
            left = u64(left | stays)
        if left != u64(0):
            encode_row(t, i, n, words, w, target, mode)

    def fused(
        x: Rows, k: int, tile: SumTile, t: Any, i: int, words: Any, w: int, f: Targets, mode: int
    ) -> None:  # fmt: skip
        b, row, factor = x.b, tile.i * x.step + k, f64(u64(x.a[tile.i, k]).view(f64))
        settling, left = settling_fields(f.inner[SETTLING:]), u64(0)
        how = fixed_mode if settles else mode
        for j in range(tile.n):
            product = u64(f64(factor * u64(b[row, tile.j + j]).view(f64)).view(u64))
            t[i, j], stays = rounded(_add_odd(product, t[i, j], how), words[w, j], settling)
            left = u64(left | stays)
        if left != u64(0):
            encode_row(t, i, tile.n, words, w, f.inner, mode)

    return LaneSteps(kernel(multiply), kernel(add), kernel(fused))


# ---- FP64 by the processor


def _double_lanes() -> LaneSteps:
    """Return the functions multiply, add and fused for sums in FP64, to which the processor itself rounds."""

    def multiply(
        x: Rows, k: int, tile: SumTile, t: Any, i: int, words: Any, w: int, f: Targets, mode: int
    ) -> None:  # fmt: skip
        b, row, factor = x.b, tile.i * x.step + k, f64(u64(x.a[tile.i, k]).view(f64))
        for j in range(tile.n):
            t[i, j] = f64(factor * u64(b[row, tile.j + j]).view(f64)).view(u64)

    def add(t: Any, i: int, x: Any, k: int, n: int, words: Any, w: int, targets: AdditionTargets, mode: int) -> None:
        for j in range(n):
            t[i, j] = f64(u64(t[i, j]).view(f64) + u64(x[k, j]).view(f64)).view(u64)

    def fused(
        x: Rows, k: int, tile: SumTile, t: Any, i: int, words: Any, w: int, f: Targets, mode: int
    ) -> None:  # fmt: skip
        b, row, factor = x.b, tile.i * x.step + k, f64(u64(x.a[tile.i, k]).view(f64))
        for j in range(tile.n):
            t[i, j] = f64(fma(factor, u64(b[row, tile.j + j]).view(f64), u64(t[i, j]).view(f64))).view(u64)

    return LaneSteps(kernel(multiply), kernel(add), kernel(fused))
