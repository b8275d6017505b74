"""Shapes of the products that check a kernel, around the boundaries of a schedule."""

from __future__ import annotations

import math
from typing import Any

from fpsim.errors import is_integer, shown
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.model import Model
from fpsim.schedules.call import Call
from fpsim.schedules.limits import refusals
from fpsim.schedules.plan import interval_of
from fpsim.schedules.schedule import FLAT, Chain, Lanes, Schedule
from fpsim.testing.products.promise import BLOCK, Adding, Promise

Shape = tuple[int, int, int]
LEAST = 435  # smallest K of the main shape, which tells slices of 128 terms and more from their blocks
LONGEST = 2048  # largest K of the shapes chosen by `shapes_for`


def checked_shapes(shapes: Any, promise: Promise | None = None) -> list[Shape]:
    """Return `shapes` as tuples of ints; raise an error for any but triples (M, N, K) of positive integers.

    promise: the arithmetic that a kernel claims; raise an error for a K that it does not allow. None allows every K.
    """
    refusal = f"shapes must be triples (M, N, K) of positive integers, such as [(16, 16, 512)]; got {shown(shapes)}."
    try:
        listed = [tuple(shape) for shape in shapes]
    except TypeError:
        raise TypeError(refusal) from None
    if not listed or any(len(s) != 3 or not all(is_integer(x) and x >= 1 for x in s) for s in listed):
        raise ValueError(refusal)
    block = promise.unit.block if promise is not None and promise.unit is not None else 0
    for _, _, k in listed:
        if promise is not None and isinstance(promise.adding, Model) and k != promise.adding.n:
            raise ValueError(f"shapes must have K = {promise.adding.n}, which was probed; got {k}.")
        if block and k % block:
            raise ValueError(f"shapes must have a K that is a multiple of {block}, which share a scale; got {k}.")
    return [(int(m), int(n), int(k)) for m, n, k in listed]


def shapes_for(promise: Promise) -> list[Shape]:
    """Return shapes (M, N, K) that the promised schedule allows, with K next to ends of its steps and partial sums.

    The first is the main shape, for which every kind of inputs is made. promise: the arithmetic that a kernel claims.
    """
    adding = promise.adding
    if isinstance(adding, Model):
        return [(*adding.shape, adding.n)]
    main, terms, interval = lengths(promise)
    few = min(main, 2 * terms[-1] if terms else main)
    short = next((k for k in terms if k >= 8), few)
    block = promise.unit.block if promise.unit is not None else 0
    even = block or math.lcm(16, BLOCK if promise.along_k else 16)
    whole = -(-min(max(2 * interval + interval // 2, 64), LONGEST) // even) * even if terms else main
    candidates = [
        (16, 16, main), *((5, 7, k) for k in terms), (1, 33, main), (33, 1, main), (1, 1, few), (130, 66, few),
        (18, 130, few), (258, 258, short), (1030, 66, short), (5, 1030, short),
        (192, 320, whole), (24, 8, whole),  # for paths of multiples only
    ]  # fmt: skip
    schedule = adding.schedule
    if promise.along_k and promise.unit is not None and promise.unit.scale is None:
        candidates[-7] = (130, 130, main)  # several tiles of scales across
    if schedule is None or schedule.library == "fpsim" or not isinstance(adding.how, MatrixUnit):
        return list(dict.fromkeys(candidates))
    kept = [_taken(schedule, adding.how, shape, promise) for shape in candidates]
    return list(dict.fromkeys(shape for shape in kept if shape is not None)) or [(16, 16, main)]


def _taken(schedule: Schedule, unit: MatrixUnit, shape: Shape, promise: Promise) -> Shape | None:
    """Return the first of three shapes that the schedule's library accepts, or None if it accepts none.

    They are `shape`, `shape` rounded up to multiples of 16, and the latter with M = 1. unit: the unit that runs the
    schedule. promise: the arithmetic that a kernel claims, for its scales and result format.
    """
    up = (-(-shape[0] // 16) * 16, -(-shape[1] // 16) * 16, -(-shape[2] // 16) * 16)
    for candidate in (shape, up, (1, *up[1:])):
        kinds = (promise.scale_a or "none", promise.scale_b or "none")
        if not refusals(Call(schedule, unit, *candidate, *kinds, promise.out)):
            return candidate
    return None


def lengths(promise: Promise) -> tuple[int, list[int], int]:
    """Return the K to check a promised arithmetic with, as (main K, further K, number of terms of a partial sum).

    Every kind of inputs is made for the main K, which has several partial sums and an incomplete one. The further K,
    ascending, are next to multiples of a step and of a partial sum. If there are no partial sums, the third number is
    the divisor of the lengths of K's slices; without slices, the terms of an instruction; for most accumulators, 8.
    """
    assert isinstance(promise.adding, Adding)
    adding, how, schedule = promise.adding, promise.chain, promise.adding.schedule or FLAT
    if how is None:
        chunk = getattr(adding.how, "chunk", 0)  # of Chunked
        return *_around(1, min(chunk, LONGEST // 4), 0), chunk or 8
    if runs := schedule.slicing.lengths:  # which add up to the only K of the schedule
        return sum(runs), [], max(runs)
    block = how.block
    if isinstance(schedule.sums, Lanes):
        lanes = min(schedule.sums.count * max(abs(schedule.sums.run), 1), LONGEST // 4)
        return *_around(1, lanes, block), lanes
    assert isinstance(schedule.sums, Chain)
    interval = interval_of(schedule.sums, how) or schedule.sums.residue
    count, grain = schedule.slicing.count, schedule.slicing.grain or 1024 // max(how.a.fmt.bits, 8)
    main, terms = _around(how.terms, interval, block)
    if count > 1:
        split = min(2 * count * grain + grain // 2 + 3, LONGEST)
        main = max(main, -(-split // block) * block if block else split)
        terms = sorted({*terms, *(k for k in (grain, grain + 1, count * grain - 1) if k <= LONGEST and not block)})
    return main, terms, interval or (grain if count > 1 else how.terms)


def _around(step: int, interval: int, block: int) -> tuple[int, list[int]]:
    """Return (main K, further K) for an arithmetic with steps and partial sums of given numbers of terms.

    Every kind of inputs is made for the main K. It has four partial sums and an incomplete one, but at most 2048 terms
    if `block` is 0. The further K, ascending, are 1, numbers next to multiples of a step and a partial sum, and a
    partial sum and a half, or and a quarter, a half and the whole of a step. step: terms of an instruction. interval:
    terms of a partial sum; 0 counts as 4 steps, or 64 if that is more. block: all K are multiples of it, if not 0,
    and main K is an odd multiple.
    """
    longest = interval or max(4 * step, 64)
    main = max(4 * longest + longest // 2 + step // 2 + 3, LEAST)
    wanted = {1, step - 1, step, step + 1, longest - 1, longest, longest + 1, longest + step - 1, 2 * longest + 1}
    wanted |= {longest + longest // 2, *(longest + step // part for part in (1, 2, 4))}
    if block:
        rounded = {-(-k // block) * block for k in wanted if k > 0}
        blocks = -(-main // block) | 1  # an odd number, as tiles of a kernel often have 2, 4 or 8 blocks
        return blocks * block, sorted(rounded)
    main = min(main, LONGEST)
    return main, sorted(k for k in wanted if 0 < k < main)
