"""Kernels of Pairwise sums in float32, sixteen columns or more at a time, with the roundings of float32_rows.py.

A row of a is multiplied by a panel (columns of b) four terms at a time, whose tree of sums stays in registers; the
totals of whole subtrees are put on a stack. K is padded to a multiple of four by products that change no sum. One bound
for all terms shows whether the sums of a block stay within the format. It is the largest sum of magnitudes, plus what
roundings can add: a relative error each and, for each of the K products, one unit in the last place of subnormals.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.processor import exchange_control
from fpsim.sums.kernels.float32_rows import (
    CONTROLLED,
    INFINITY,
    MAGNITUDE,
    NAN,
    NO_LEAST,
    ONE,
    STRIP,
    ZERO,
    float_of,
    shortened_in_mode,
    strip_facts,
)

f32, f64, u32 = np.float32, np.float64, np.uint32

GROUP = 4  # terms whose tree is written out
DEPTH = 32  # levels of a tree, for which the bound for BLOCK steps holds too
PAIRS, PLAIN_PAIRS = 6, 7  # steps besides those of float32_rows: in a shorter format, in FP32


@cache
def pairs_kernel(how: int) -> Any:
    """Return the kernel that computes Pairwise sums in float32, for blocks of the result.

    The kernel is `(a, panels, c, out, given_up, ranges, first, stop, facts) -> lost`. A block ("strip") is STRIP rows
    of a times one panel (columns of b); blocks first .. stop - 1, counted along rows of blocks, are computed.

    a, panels, ranges: as in Panels of float32_plan.py. c: (M, N) float32 bits that are added at the end, or empty. out:
    (M, N) float32 bits, written. given_up: 1-D uint8, set to 1 for each block that float32 cannot compute and whose
    part of `out` stays as it was, else to 0. lost: the number of ones. facts: constants of the accumulator, the fields
    of StripFacts.

    Args:
      how: PAIRS for formats shorter than FP32, PLAIN_PAIRS for FP32.
    """
    plain = how == PLAIN_PAIRS

    @scalar
    def rounded(x: Any, scale: Any, floor: Any) -> Any:
        return x if plain else shortened_in_mode(x, scale, floor)

    @scalar
    def pair(x0: Any, y0: Any, x1: Any, y1: Any, scale: Any, floor: Any) -> Any:
        """Return x0 * y0 + x1 * y1, with both products and the sum rounded to the accumulator's format.

        scale: 2**(24 - precision of the format). floor: float32 bits of 1.5 times its smallest normal value.
        """
        left, right = rounded(f32(x0 * y0), scale, floor), rounded(f32(x1 * y1), scale, floor)
        return rounded(f32(left + right), scale, floor)

    def four(a: Any, k: int, b: Any, t: Any, scale: Any, floor: Any) -> None:
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        for j in range(t.size):
            left, right = pair(a0, b0[j], a1, b1[j], scale, floor), pair(a2, b2[j], a3, b3[j], scale, floor)
            t[j] = rounded(f32(left + right), scale, floor)

    def join(t: Any, x: Any, scale: Any, floor: Any) -> None:
        for j in range(t.size):
            t[j] = rounded(f32(t[j] + x[j]), scale, floor)

    four, join = scalar(four), scalar(join)

    def tree(a: Any, b: Any, stack: Any, scale: Any, floor: Any) -> None:
        """Set stack[0] to the pairwise sums of one row of a times all columns of b, a panel.

        a: (terms,) float32. b: (terms, width) float32. stack: (levels, width) float32; all rows but stack[0]
        are scratch. scale: 2**(24 - precision of the format). floor: float32 bits of 1.5 times the format's smallest
        normal value.
        """
        groups, height = a.size // GROUP, 0
        for g in range(groups):
            four(a, g * GROUP, b, stack[height], scale, floor)
            height += 1
            level = 0  # levels of the sums that this group completes; the last group completes all
            while height > 1 and (g >> level & 1 or g + 1 == groups):
                if g >> level & 1:
                    join(stack[height - 2], stack[height - 1], scale, floor)
                    height -= 1
                level += 1

    tree = scalar(tree)

    @scalar
    def reached(a: Any, i: int, rows: int) -> Any:
        """Return the largest sum over K of the magnitudes in one row, among rows i .. i + rows - 1 of a, as float64."""
        most = f64(0)
        for r in range(i, i + rows):
            total = f64(0)
            for k in range(a.shape[1]):
                total += abs(f64(a[r, k]))
            most = max(most, total)
        return most

    def pairs(
        a: Any, panels: Any, c: Any, out: Any, given_up: Any, ranges: Any, first: int, stop: int, facts: Any
    ) -> int:
        u = strip_facts(facts)
        before, lost = exchange_control(u.control) if CONTROLLED else u.control, 0
        width, columns = panels.shape[2], out.shape[1]
        growth, reach, smallest = float_of(u.growth), float_of(u.reach), float_of(u.smallest)
        scale, floor, lifted = f32(float_of(u.scale)), u32(u.floor), f64(float_of(u.smallest_subnormal) * a.shape[1])
        stack = np.zeros((DEPTH, width), np.float32)
        for strip in range(first, stop):
            i, panel = strip // panels.shape[0] * STRIP, strip % panels.shape[0]
            j = panel * width
            height, count = min(STRIP, out.shape[0] - i), min(width, columns - j)
            largest, least = ZERO, NO_LEAST
            for r in range(i, i + height):
                largest, least = max(largest, ranges[0, r]), min(least, ranges[1, r])
            of_panel, of_least = ranges[0, a.shape[0] + panel], ranges[1, a.shape[0] + panel]
            start = f64(0)
            for r in range(height if c.size > 0 else 0):
                for lane in range(count):
                    start = max(start, f64(u32(c[i + r, j + lane] & MAGNITUDE).view(f32)))
            most = f64(start + lifted + reached(a, i, height) * f64(u32(of_panel).view(f32)))
            lowest = f64(u32(least + ONE).view(f32)) * f64(u32(of_least + ONE).view(f32))
            special = largest >= INFINITY or of_panel >= INFINITY or not start < f64(np.inf)
            alive = plain or (most * growth <= reach and lowest >= smallest and not special)
            given_up[strip] = not alive
            lost += not alive
            for r in range(height if alive else 0):
                tree(a[i + r], panels[panel], stack, scale, floor)
                if c.size > 0:
                    for lane in range(count):
                        stack[1, lane] = u32(c[i + r, j + lane]).view(f32)
                    join(stack[0], stack[1], scale, floor)
                for lane in range(count):
                    bits = f32(stack[0, lane]).view(u32)
                    out[i + r, j + lane] = NAN if u32(bits & MAGNITUDE) > INFINITY else bits
        if CONTROLLED:
            exchange_control(before)
        return lost

    return kernel(pairs)
