"""Candidates for the arithmetic by which a wrong kernel adds: units, schedules, accumulators, sums of parts of K."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, FP16, FP32, FP64, TF32
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.catalogue import float_units as units
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.model import Model
from fpsim.schedules.catalogue import ROWS
from fpsim.schedules.libraries.cublas import cublas
from fpsim.schedules.libraries.cutlass import cutlass_2xacc
from fpsim.schedules.libraries.triton import triton
from fpsim.schedules.plan import interval_of
from fpsim.schedules.schedule import FLAT, Chain, Lanes, Schedule, Slicing
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential
from fpsim.testing.products.promise import Adding, Promise, takes
from fpsim.testing.products.sums import Addition, Dequantised, JoinedParts

INTERVALS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
SEGMENTS = (64, 128, 192, 256, 320, 384, 480, 512, 768, 1024)  # terms of K that CPU libraries add in one chain
SPLITS = (2, 3, 4, 5, 6, 7, 8, 12, 16)


@lru_cache(maxsize=32)
def additions(promise: Promise) -> tuple[Addition, ...]:
    """Return the arithmetics by which a kernel may sum products instead of the promised one, likely ones first.

    They are units with schedules, accumulators, and partial sums that are joined in unusual orders. promise: the
    arithmetic that the kernel claims.
    """
    others: dict[Any, None] = dict.fromkeys(_additions(promise))
    others.pop(promise.adding, None)
    return tuple(others)


def _additions(promise: Promise) -> Iterator[Addition]:
    """Yield candidates for the arithmetic by which a kernel sums products; they may repeat.

    The arithmetic of `promise`, which the kernel claims, may be among them.
    """
    if promise.along_k:
        yield from _scaled_along_k(promise)
        return
    if not isinstance(promise.adding, Model):
        yield from _beside(promise)
        if not isinstance(promise.adding.how, MatrixUnit):
            yield from _accumulators(promise)  # before the units and schedules that have the same bits
    for unit in _units_for(promise):
        yield Adding(unit)
        if unit.d.fmt != FP32:
            continue
        for row in ROWS:
            if row.arch in ("", unit.arch) and not row.block_scaled and _adds(row, unit):
                yield Adding(unit, row)
        for interval in INTERVALS:
            if interval % unit.terms == 0 and unit.scale is None:
                yield Adding(unit, cutlass_2xacc(interval))
    yield from _accumulators(promise)
    yield from _of_processors()
    yield from _lanes(promise)
    yield from _read_otherwise(promise)


def _units_for(promise: Promise) -> list[MatrixUnit]:
    """Return all units that accept the promised operands, and have the promised unit's scale format and block size."""
    unit = promise.unit
    scale, block = (unit.scale, unit.block) if unit is not None else (None, 0)
    fitting = [candidate for candidate in units() if (candidate.scale, candidate.block) == (scale, block)]
    return [candidate for candidate in fitting if takes(candidate.a, promise.a) and takes(candidate.b, promise.b)]


def _adds(schedule: Schedule, unit: MatrixUnit) -> bool:
    """Return whether a unit can follow a schedule.

    If the schedule adds partial sums to a total, each of them must consist of whole steps (instructions) of the unit.
    """
    return not isinstance(schedule.sums, Chain) or interval_of(schedule.sums, unit) % unit.terms == 0


def _beside(promise: Promise) -> Iterator[Addition]:
    """Yield arithmetics similar to the promised one: with other partial sums, or other additions of partial sums.

    They are: the unit without a schedule; other promotion intervals (numbers of terms after which a partial sum is
    added to a float32 total); K cut into slices; partial sums that are added in another order (last first, pairwise),
    in another format or with another rounding; and partial sums of the promised length except the first one, which is
    shorter or longer. promise: the arithmetic that the kernel claims.
    """
    adding = promise.adding
    assert isinstance(adding, Adding)
    how = adding.how
    if isinstance(how, MatrixUnit):
        yield Adding(how)
        if how.d.fmt == FP32 and how.scale is None:
            chain = adding.schedule or FLAT
            for interval in INTERVALS:
                if interval % how.terms == 0:
                    yield Adding(how, cutlass_2xacc(interval))
                    if 32 <= interval < 256:
                        yield Adding(how, triton(256, max_num_imprecise_acc=interval))
            for base in dict.fromkeys((chain, FLAT)):
                yield from (Adding(how, split) for split in _split(base, how, promise.out))
            for count in SPLITS:
                for fast in (False, True):
                    with suppress(ValueError):
                        yield Adding(how, cublas(how.arch, split_k=count, fast_accum=fast))
    if isinstance(how, Accumulator) and adding.schedule is not None:
        yield Adding(how)
        yield from (Adding(how, cutlass_2xacc(interval)) for interval in INTERVALS)
    if isinstance(how, MatrixUnit) and how.scale is not None:
        return
    step = how.terms if isinstance(how, MatrixUnit) else 8
    inner = Adding(how) if not isinstance(how, Chunked) else Adding(Sequential(how.fmt))
    interval = _interval(adding)
    for fmt in (FP32, BF16, FP16, FP64):
        for order in ("forward", "backward", "pairwise"):
            for terms in dict.fromkeys((interval, 32, 64, 128, 256)):
                promised = terms == interval and (fmt, order) == (FP32, "forward")
                if terms and terms >= step and not promised:
                    yield JoinedParts(inner, terms, fmt=fmt, order=order)
            for count in (2, 3, 4, 8):
                yield JoinedParts(adding, parts=count, fmt=fmt, order=order)
                yield JoinedParts(inner, parts=count, fmt=fmt, order=order)
                if fmt in (BF16, FP16) and order != "pairwise":
                    yield JoinedParts(inner, parts=count, fmt=fmt, order=order, twice=True)
    yield from _sliced(inner, adding)
    for terms in dict.fromkeys((interval, 32, 64, 128)):
        for fmt in (BF16, FP16):
            if terms and terms >= step:
                yield JoinedParts(inner, terms, fmt=fmt, twice=True)
    if interval:
        for first in sorted({step, 2 * step, interval // 2, interval - step, interval + step}):
            if first > 0 and first != interval:
                yield JoinedParts(inner, interval, first=first)
        for rounding in ("toward_zero", "nearest_away", "up", "down"):
            yield JoinedParts(inner, interval, rounding=rounding)


def _sliced(*chains: Adding) -> Iterator[JoinedParts]:
    """Yield arithmetics that cut K into 2 to 8 slices, and add the slices' sums in float32.

    No known schedule cuts or adds slices in these ways. chains: the arithmetics to try within a slice; all slices of a
    sum use the same one.
    """
    cuts = [
        *(("last_longer", grain) for grain in (1, 16, 32, 64)), *(("ceiling", grain) for grain in (16, 32, 64, 128)),
        ("first_longer", 1), *(("rounded_up", grain) for grain in (16, 32, 64)), ("halving", 1),
    ]  # fmt: skip
    for inner in dict.fromkeys(chains):
        for count in (2, 3, 4, 8):
            for cut, grain in cuts:
                if cut != "halving" or count in (4, 8):
                    for order in ("forward", "backward", "pairwise"):
                        yield JoinedParts(inner, parts=count, order=order, cut=cut, grain=grain)


def promoted_parts(adding: Adding) -> JoinedParts | None:
    """Return the arithmetic `adding`, which adds partial sums to a float32 total, as `JoinedParts`.

    Return None if it has no such partial sums. adding: a unit with its schedule, or an accumulator.
    """
    interval = _interval(adding)
    chained = isinstance(adding.how, MatrixUnit) or adding.schedule is not None
    return JoinedParts(Adding(adding.how), interval) if interval and chained else None


def _interval(adding: Adding) -> int:
    """Return the number of terms of a partial sum (promotion interval or chunk); 0 if there are no partial sums.

    adding: a matrix unit with its schedule, or an accumulator.
    """
    if isinstance(adding.how, Accumulator) and adding.schedule is not None:
        return adding.schedule.sums.interval if isinstance(adding.schedule.sums, Chain) else 0
    if isinstance(adding.how, Chunked):
        return adding.how.chunk
    if isinstance(adding.how, MatrixUnit) and adding.schedule is not None and isinstance(adding.schedule.sums, Chain):
        return interval_of(adding.schedule.sums, adding.how)
    return 0


def _split(schedule: Schedule, unit: MatrixUnit, out: Format) -> Iterator[Schedule]:
    """Yield `schedule` with K cut into slices, for several numbers of slices, rules of cutting and orders of merging.

    unit: the matrix unit; some rules do not cut within its steps. If it does not add in FP32, nothing is yielded.
    out: the format of the results, in which some merges round.
    """
    if isinstance(schedule.sums, Lanes) or unit.d.fmt != FP32:
        return
    merges = ("float32", "from_both_ends") if out == FP32 else ("float32", "output", "in_place", "from_both_ends")
    for count in SPLITS:
        for rule, grain in (("ceiling", unit.terms), ("ceiling", 0), ("even", 0), ("interleaved", unit.terms)):
            for merge in merges:
                slicing = Slicing(count, grain, rule, merge)  # type: ignore[arg-type]
                how = "" if merge == "float32" else f", merged as {merge}"
                dealt = {"ceiling": f"of whole runs of {grain or 'a tile'}", "even": "of equal length",
                         "interleaved": f"that take runs of {grain} in turn"}[rule]  # fmt: skip
                yield replace(schedule, name=f"{schedule.name}, {count} slices of K {dealt}{how}", slicing=slicing)


def _accumulators(promise: Promise) -> Iterator[Adding]:
    """Yield sequential, fused, pairwise, exact and chunked accumulators in several formats.

    The formats are FP32, FP64, FP16, BF16, TF32 and the result's format if it has 16 bits or more. Some accumulators
    round toward zero, flush subnormals or saturate. Chunked accumulators, with chunks of 2 to 256 terms, come last.
    promise: the arithmetic that the kernel claims, for its result format.
    """
    for fmt in dict.fromkeys((promise.out if promise.out.bits >= 16 else FP32, FP32, FP64, FP16, BF16, TF32)):
        for make in (Sequential, FusedMultiplyAdd, Pairwise, Exact):
            yield Adding(make(fmt))
        if fmt != FP64:
            yield Adding(FusedMultiplyAdd(fmt, rounding="toward_zero"))
            yield Adding(Sequential(fmt, rounding="toward_zero"))
            yield Adding(Sequential(fmt, subnormals="flush"))
            yield Adding(FusedMultiplyAdd(fmt, subnormals="flush"))
            yield Adding(FusedMultiplyAdd(fmt, overflow="saturate"))
    for inner, outer in ((FP32, FP32), (FP16, FP32), (BF16, FP32), (FP16, FP16), (FP32, BF16), (FP32, FP16)):
        for chunk in (2, 4, 8, 16, 32, 64, 128, 256):
            yield Adding(Chunked(inner, chunk, outer))


def _of_processors() -> Iterator[Addition]:
    """Yield arithmetics in float32 that cut K into parts as CPU libraries do, and add the parts' sums in order.

    Within a part terms are added in order, fused or not; in half of the arithmetics, the second of each two
    neighbouring terms is added before the first.
    """
    for inner, odd_first in product((Adding(FusedMultiplyAdd(FP32)), Adding(Sequential(FP32))), (False, True)):
        if odd_first:
            yield JoinedParts(inner, parts=1, odd_first=True)
        for terms, rule in ((384, "halved"), (384, "last_halved"), (192, "last_halved"), (512, "doubled")):
            yield JoinedParts(inner, terms, rule=rule, odd_first=odd_first)
        for count in (2, 3, 4):
            yield JoinedParts(inner, parts=count, odd_first=odd_first)
        for terms in SEGMENTS:
            yield JoinedParts(inner, terms, odd_first=odd_first)


def _lanes(promise: Promise) -> Iterator[Addition]:
    """Yield arithmetics that add terms to 2 to 64 running sums (chains) in float32, as threads or SIMD lanes do.

    Terms are given to n chains in one of three ways. Chain i adds the terms k with k mod n = i; or part i of n equal
    parts of K; or the runs j with j mod n = i, where a run has 2, 4 or 8 neighbouring terms. The chains' sums are then
    added from the first on, from the last on, pairwise, or by halves (i and i + n/2, until one is left). promise: the
    arithmetic that the kernel claims, for its operands.
    """
    for inner in (Adding(Sequential(FP32)), Adding(FusedMultiplyAdd(FP32))):
        for count in (2, 4, 8, 16, 32):
            for order in ("forward", "pairwise", "halves", "backward"):
                yield JoinedParts(inner, parts=count, order=order, strided=True)
                yield JoinedParts(inner, parts=count, order=order)
    unit = promise.unit or next((u for u in units() if takes(u.a, promise.a) and takes(u.b, promise.b)), None)
    if unit is None or unit.d.fmt != FP32 or unit.scale is not None:
        return
    for count in (2, 4, 8, 16, 32, 64):
        for merge in ("forward", "butterfly"):
            for run in (1, 2, 4, 8, 0):
                dealt = "runs of equal length" if run == 0 else f"every run of {run}" if run > 1 else "terms in turn"
                how = "in order" if merge == "forward" else "by halves"
                words = f"{count} chains of float32 multiply-adds over {dealt}, joined {how}"
                yield Adding(unit, Schedule(words, sums=Lanes(count, run, merge=merge)), words)


def _read_otherwise(promise: Promise) -> Iterator[Adding]:
    """Yield the promised arithmetic with units that decode the operands' codes as another format of the same width.

    promise: the arithmetic that the kernel claims.
    """
    adding = promise.adding
    unit = promise.unit
    if not isinstance(adding, Adding) or unit is None or unit.scale is not None:
        return
    for other in units():
        if (other.arch, other.terms, other.d, other.rule) != (unit.arch, unit.terms, unit.d, unit.rule):
            continue
        same = (other.a.fmt.bits, other.b.fmt.bits) == (unit.a.fmt.bits, unit.b.fmt.bits)
        if same and (other.a, other.b) != (unit.a, unit.b):
            pairs = (("a", unit.a, other.a), ("b", unit.b, other.b))
            said = [f"{side} as {got.fmt}" for side, want, got in pairs if want != got]
            yield Adding(other, adding.schedule, f"{adding.name}, reading {' and '.join(said)}", codes=True)


def _scaled_along_k(promise: Promise) -> Iterator[Addition]:
    """Yield arithmetics with other units, schedules and orders of applying scales, for scales that vary along K.

    promise: the arithmetic that the kernel claims, which has a matrix unit.
    """
    adding = promise.adding
    assert isinstance(adding, Adding)
    assert isinstance(adding.how, MatrixUnit)
    unit = adding.how
    for other in _units_for(promise):
        if other.d.fmt != FP32:
            continue
        if unit.scale is not None:
            yield Adding(other)
            yield from (Adding(other, row) for row in ROWS if row.arch in ("", other.arch) and _adds(row, other))
            continue
        for row in ROWS:
            if row.block_scaled and row.arch in ("", other.arch) and _adds(row, other):
                yield Adding(other, row)
        for order in ("product", "a_first", "b_first"):
            for interval, fuses in ((32, True), (64, True), (128, True), (128, False)):
                if interval % other.terms == 0 and adding.schedule is not None:
                    epilogue = replace(adding.schedule.epilogue, scale_order=order)
                    joined = order if fuses else f"{order}, rounded before they are added"
                    words = f"scales joined as {joined}, promotion every {interval} terms"
                    yield Adding(other, replace(
                        adding.schedule, name=words, sums=Chain(interval), epilogue=epilogue,
                        fuses_scales=fuses))  # fmt: skip
    if unit.scale is None:
        for fmt in (BF16, FP16, FP32):
            for how in (FusedMultiplyAdd(FP32), Sequential(FP32), Exact(FP32), Exact(FP64)):
                yield Dequantised(fmt, how)
        for name, fmt in (("hopper_bf16_f32", BF16), ("hopper_f16_f32", FP16), ("ampere_bf16_f32", BF16)):
            with suppress(ValueError):
                yield Dequantised(fmt, find_unit(name))
