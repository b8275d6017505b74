"""The family of additions that a kernel's is told from: units, schedules, accumulators, and sums put together here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, FP16, FP32, FP64, TF32
from fpsim.matrix_units.catalogue import unit as find_unit
from fpsim.matrix_units.catalogue import units
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.model import Model
from fpsim.products.matmul import matmul
from fpsim.runtime.general_loops import general_loops
from fpsim.schedules.catalogue import ROWS
from fpsim.schedules.libraries.cublas import cublas
from fpsim.schedules.libraries.cutlass import cutlass_2xacc
from fpsim.schedules.libraries.triton import triton
from fpsim.schedules.plan import interval_of
from fpsim.schedules.schedule import FLAT, Chain, Lanes, Schedule, Slicing
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential
from fpsim.testing.products.changes import rounded
from fpsim.testing.products.promise import (
    BLOCK,
    Adding,
    KernelInputs,
    Promise,
    operand_values,
    raw_sums,
    takes,
    units_for,
)

INTERVALS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
SEGMENTS = (64, 128, 192, 256, 320, 384, 480, 512, 768, 1024)  # terms of K that processors add in one chain
SPLITS = (2, 3, 4, 5, 6, 7, 8, 12, 16)
KEPT = 400  # additions whose partial sums are kept


CUTS = {
    "ceiling": "",
    "last_longer": " (the last ones longer)",
    "first_longer": " (the first ones longer)",
    "rounded_up": " (of equal length, rounded up)",
    "halving": " (halved again and again)",
}  # how K is cut into slices, as a part of their name


def _ends(k: int, parts: int, cut: str, grain: int) -> list[int]:
    """Return where slices of K end, before they are limited to K."""
    if cut == "ceiling":
        size = -(-max(-(-k // parts), 1) // grain) * grain
        return [i * size for i in range(1, parts + 1)]
    if cut == "last_longer":
        return [i * k // parts // grain * grain for i in range(1, parts)]
    if cut == "rounded_up":
        return [-(-(i * k // parts) // grain) * grain for i in range(1, parts)]
    if cut == "first_longer":
        return [i * (k // parts) + min(i, k % parts) for i in range(1, parts)]
    ends = [0, k]  # halving
    while len(ends) <= parts:
        middles = [(start + end) // 2 for start, end in pairwise(ends)]
        ends = sorted(ends + middles)
    return ends


class JoinedParts(NamedTuple):
    """Partial sums of a unit or an accumulator, joined as no schedule does it.

    terms: of a part; 0 for so many `parts`. first: terms of the first part, where it has fewer. fmt: of the total.
    cut: how K is cut into `parts`, see CUTS; grain: ends are multiples of it.
    order: "forward" or "backward", one after the other, or "pairwise".
    strided: part i has the terms k with k mod parts = i.
    twice: sums are rounded to float32 before they are rounded to fmt.
    rule: a name of RULES, by which K is cut into parts of about `terms`; "" for parts that all have so many.
    odd_first: of each two neighbours the odd one is added first.
    """

    inner: Adding
    terms: int
    parts: int
    first: int
    fmt: Format
    order: str
    rounding: str = "nearest_even"
    strided: bool = False
    twice: bool = False
    rule: str = ""
    odd_first: bool = False
    cut: str = "ceiling"
    grain: int = 1

    @property
    def name(self) -> str:
        """The addition in words."""
        sort = f"sums over every {self.parts}th term" if self.strided else "slices of K"
        size = f"{self.parts} {sort}" if self.parts else f"partial sums of {self.terms} terms"
        size = RULES[self.rule].format(self.terms, 2 * self.terms, 4 * self.terms) if self.rule else size
        size = "K as a whole" if self.parts == 1 else size
        size += ", the odd term of each pair first," if self.odd_first else ""
        first = f", the first of {self.first}" if self.first > 0 else CUTS[self.cut]
        first += f" in multiples of {self.grain}" if self.grain > 1 else ""
        order = {"forward": "", "backward": " from the last to the first", "pairwise": " in pairs",
                 "halves": " by halves"}[self.order]  # fmt: skip
        rounding = "" if self.rounding == "nearest_even" else f", rounded {self.rounding.replace('_', ' ')},"
        twice = "float32, then rounded to " if self.twice else ""
        if self.parts == 1:
            return f"{size} by {self.inner.name}"
        return f"{size}{first} by {self.inner.name}, joined{order} in {twice}{self.fmt}{rounding}"

    def cuts(self, k: int) -> list[slice]:
        """The terms of every part."""
        if self.strided:
            return [slice(i, k, self.parts) for i in range(min(self.parts, k))]
        if self.rule:
            ends = list(accumulate(_sizes(self.rule, self.terms, k), initial=0))
            return [slice(*pair) for pair in pairwise(ends)]
        if self.terms:
            starts = [0, *range(self.first or self.terms, k, self.terms)]
            return [slice(*pair) for pair in pairwise([*starts, k])]
        ends = sorted({0, *(min(end, k) for end in _ends(k, self.parts, self.cut, self.grain)), k})
        return [slice(*pair) for pair in pairwise(ends)]


# How libraries for processors cut K: name -> words, with one, two and four times the terms of a part.
RULES = {
    "halved": "K in halves above {0} terms, in parts of {1} from {2} on",
    "last_halved": "parts of {0} terms, the last {1} or fewer in halves",
    "doubled": "parts of {0} terms, of {1} where K is above {1}",
}


def _sizes(rule: str, terms: int, k: int) -> list[int]:
    """The terms of each part of K by a rule of RULES."""
    if rule == "halved" and terms < k < 4 * terms:
        return [-(-k // 2), k // 2]
    if rule == "last_halved":
        whole = max(k // terms - 1, 0)
        rest = k - whole * terms
        return [terms] * whole + ([-(-rest // 2), rest // 2] if rest > terms else [rest])
    size = {"halved": k if k <= terms else 2 * terms, "doubled": 2 * terms if k > 2 * terms else terms}[rule]
    return [min(size, k - start) for start in range(0, k, size)]


class Dequantised(NamedTuple):
    """Operands that meet their scales before they are multiplied, each rounded to a format."""

    fmt: Format
    how: Accumulator | MatrixUnit

    @property
    def name(self) -> str:
        """The addition in words."""
        how = self.how.name if isinstance(self.how, MatrixUnit) else repr(self.how)
        return f"operands times scales, rounded to {self.fmt}, added by {how}"


Addition = Adding | JoinedParts | Dequantised


class PartialSums:
    """The partial sums of operands, which all additions share that join the same ones."""

    def __init__(self, promise: Promise) -> None:
        self.promise = promise
        self._kept: dict[Any, tuple[Array, Array, list[Array]]] = {}  # with the operands, whose id no others have then

    def joined(self, x: KernelInputs, how: JoinedParts) -> Array:
        """Sums as float64 or float32, without scales and bias."""
        cuts = how.cuts(x.shape[2])
        key = id(x.a), id(x.b), how.inner, how.odd_first, *((cut.start, cut.stop, cut.step) for cut in cuts)
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            bare = replace(x, scale_a=None, scale_b=None, bias=None)
            places = [np.arange(x.shape[2])[terms] for terms in cuts]
            places = [_odd_first(terms) if how.odd_first else terms for terms in places]
            parts = [replace(bare, a=np.ascontiguousarray(x.a[:, terms]), b=np.ascontiguousarray(x.b[terms]))
                     for terms in places]  # fmt: skip
            sums = [raw_sums(self.promise, part, how.inner).astype(np.float64) for part in parts]
            self._kept[key] = x.a, x.b, sums
        return _joined(self._kept[key][2], how)


def _joined(parts: list[Array], how: JoinedParts) -> Array:
    def add(x: Array, y: Array) -> Array:
        with np.errstate(all="ignore"):
            total = (x + y).astype(np.float32) if how.twice else x + y
            return total if how.fmt == FP64 else rounded(total, how.fmt, how.rounding)

    if how.order == "halves":
        while len(parts) > 1:
            half = 1 << (len(parts) - 1).bit_length() - 1
            parts = [add(parts[i], parts[i + half]) if i + half < len(parts) else parts[i] for i in range(half)]
        return parts[0]
    if how.order == "pairwise":
        while len(parts) > 1:
            parts = [add(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
        return parts[0]
    if how.order == "backward":
        parts = parts[::-1]
    total = np.zeros_like(parts[0])
    for part in parts:
        total = add(total, part)
    return total


def _odd_first(terms: Array) -> Array:
    """Terms with the second of each two neighbours first."""
    order = np.arange(terms.size) ^ 1
    return np.asarray(terms[np.where(order < terms.size, order, terms.size - 1)])


def dequantised_sums(promise: Promise, x: KernelInputs, how: Dequantised) -> Array:
    """Sums as float64, with the scales and without bias."""
    sides = []
    for side, (codes, operand) in enumerate(((x.a, promise.a), (x.b, promise.b))):
        scale = (x.scale_a, x.scale_b)[side]
        values = operand_values(codes, operand)
        with np.errstate(all="ignore"):
            sides.append(rounded(values if scale is None else values * _spread(scale, values.shape), how.fmt))
    dtype = np.float32 if how.fmt == FP32 or how.fmt.dtype is None else how.fmt.dtype
    with np.errstate(all="ignore"), general_loops():
        found = matmul(*(side.astype(dtype) for side in sides), accumulate=how.how)
    return np.asarray(found, np.float64)


def _spread(scale: Array, shape: tuple[int, int]) -> Array:
    """Scales as many as there are elements."""
    rows, columns = (np.arange(size) // (BLOCK if of not in (1, size) else max(size // of, 1))
                     for size, of in zip(shape, scale.shape, strict=True))  # fmt: skip
    return np.asarray(scale[np.minimum(rows, scale.shape[0] - 1)[:, None], np.minimum(columns, scale.shape[1] - 1)])


# ---- the family


@lru_cache(maxsize=32)
def additions(promise: Promise) -> tuple[Addition, ...]:
    """Every addition that a kernel may have instead of the promised one, the likely ones first."""
    found: dict[Any, None] = dict.fromkeys(_additions(promise))
    found.pop(promise.adding, None)
    return tuple(found)


def _additions(promise: Promise) -> Iterator[Addition]:
    if promise.along_k:
        yield from _scaled_along_k(promise)
        return
    model = isinstance(promise.adding, Model)
    if not model:
        yield from _beside(promise)
    for unit in units_for(promise):
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


def _adds(schedule: Schedule, unit: MatrixUnit) -> bool:
    return not isinstance(schedule.sums, Chain) or interval_of(schedule.sums, unit) % unit.terms == 0


def _beside(promise: Promise) -> Iterator[Addition]:
    """The promised addition with another size or another join."""
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
            for each in dict.fromkeys((chain, FLAT)):
                yield from (Adding(how, split) for split in _split(each, how, promise.out))
            for count in SPLITS:
                for fast in (False, True):
                    with suppress(ValueError):
                        yield Adding(how, cublas(how.arch, split_k=count, fast_accum=fast))
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
                    yield JoinedParts(inner, terms, 0, 0, fmt, order)
            for count in (2, 3, 4, 8):
                yield JoinedParts(adding, 0, count, 0, fmt, order)
                yield JoinedParts(inner, 0, count, 0, fmt, order)
                if fmt in (BF16, FP16) and order != "pairwise":
                    yield JoinedParts(inner, 0, count, 0, fmt, order, twice=True)
    yield from _sliced(inner, adding)
    for terms in dict.fromkeys((interval, 32, 64, 128)):
        for fmt in (BF16, FP16):
            if terms and terms >= step:
                yield JoinedParts(inner, terms, 0, 0, fmt, "forward", twice=True)
    if interval:
        for first in sorted({step, 2 * step, interval // 2, interval - step, interval + step}):
            if first > 0 and first != interval:
                yield JoinedParts(inner, interval, 0, first, FP32, "forward")
        for rounding in ("toward_zero", "nearest_away", "up", "down"):
            yield JoinedParts(inner, interval, 0, 0, FP32, "forward", rounding)


def _sliced(*chains: Adding) -> Iterator[JoinedParts]:
    """Sums of slices of K in float32: cut by other rules than schedules have, or merged in another order."""
    cuts = [
        *(("last_longer", grain) for grain in (1, 16, 32, 64)), *(("ceiling", grain) for grain in (16, 32, 64, 128)),
        ("first_longer", 1), *(("rounded_up", grain) for grain in (16, 32, 64)), ("halving", 1),
    ]  # fmt: skip
    for inner in dict.fromkeys(chains):
        for count in (2, 3, 4, 8):
            for cut, grain in cuts:
                if cut != "halving" or count in (4, 8):
                    for order in ("forward", "backward", "pairwise"):
                        yield JoinedParts(inner, 0, count, 0, FP32, order, cut=cut, grain=grain)


def promoted_parts(adding: Adding) -> JoinedParts | None:
    """Return the partial sums that a promise promotes, or None where it promotes none."""
    interval = _interval(adding)
    if not interval or not isinstance(adding.how, MatrixUnit):
        return None
    return JoinedParts(Adding(adding.how), interval, 0, 0, FP32, "forward")


def _interval(adding: Adding) -> int:
    if isinstance(adding.how, Chunked):
        return adding.how.chunk
    if isinstance(adding.how, MatrixUnit) and adding.schedule is not None and isinstance(adding.schedule.sums, Chain):
        return interval_of(adding.schedule.sums, adding.how)
    return 0


def _split(schedule: Schedule, unit: MatrixUnit, out: Format) -> Iterator[Schedule]:
    """K in slices."""
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
    for fmt in dict.fromkeys((promise.out if promise.out.bits >= 16 else FP32, FP32, FP64, FP16, BF16, TF32)):
        for make in (Sequential, FusedMultiplyAdd, Pairwise, Exact):
            yield Adding(make(fmt))
        if fmt != FP64:
            yield Adding(FusedMultiplyAdd(fmt, rounding="toward_zero"))
            yield Adding(Sequential(fmt, subnormals="flush"))
            yield Adding(FusedMultiplyAdd(fmt, subnormals="flush"))
            yield Adding(FusedMultiplyAdd(fmt, overflow="saturate"))
    for inner, outer in ((FP32, FP32), (FP16, FP32), (BF16, FP32), (FP16, FP16), (FP32, BF16), (FP32, FP16)):
        for chunk in (2, 4, 8, 16, 32, 64, 128, 256):
            yield Adding(Chunked(inner, chunk, outer))


def _of_processors() -> Iterator[Addition]:
    """Chains in float32 over parts of K, as libraries for processors cut it; of pairs the odd term first, or not."""
    for inner, odd_first in product((Adding(FusedMultiplyAdd(FP32)), Adding(Sequential(FP32))), (False, True)):
        if odd_first:
            yield JoinedParts(inner, 0, 1, 0, FP32, "forward", odd_first=True)
        for terms, rule in ((384, "halved"), (384, "last_halved"), (192, "last_halved"), (512, "doubled")):
            yield JoinedParts(inner, terms, 0, 0, FP32, "forward", rule=rule, odd_first=odd_first)
        for count in (2, 3, 4):
            yield JoinedParts(inner, 0, count, 0, FP32, "forward", odd_first=odd_first)
        for terms in SEGMENTS:
            yield JoinedParts(inner, terms, 0, 0, FP32, "forward", odd_first=odd_first)


def _lanes(promise: Promise) -> Iterator[Addition]:
    """Threads that add in float32."""
    for inner in (Adding(Sequential(FP32)), Adding(FusedMultiplyAdd(FP32))):
        for count in (2, 4, 8, 16, 32):
            for order in ("forward", "pairwise", "halves", "backward"):
                yield JoinedParts(inner, 0, count, 0, FP32, order, strided=True)
                yield JoinedParts(inner, 0, count, 0, FP32, order)
    unit = promise.unit or next((u for u in units() if takes(u.a, promise.a) and takes(u.b, promise.b)), None)
    if unit is None or unit.d.fmt != FP32 or unit.scale is not None:
        return
    for count in (2, 4, 8, 16, 32, 64):
        for merge in ("forward", "butterfly"):
            for run in (1, 2, 4, 8, 0):
                each = "runs of equal length" if run == 0 else f"every run of {run}" if run > 1 else "terms in turn"
                how = "in order" if merge == "forward" else "by halves"
                words = f"{count} chains of float32 multiply-adds over {each}, joined {how}"
                yield Adding(unit, Schedule(words, sums=Lanes(count, run, merge=merge)), words)


def _read_otherwise(promise: Promise) -> Iterator[Adding]:
    """Codes of the operands taken for those of another format."""
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
    """Other orders of scales and sums, where scales change along K."""
    adding = promise.adding
    assert isinstance(adding, Adding)
    assert isinstance(adding.how, MatrixUnit)
    unit = adding.how
    for other in units_for(promise):
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
            for interval in (32, 64, 128):
                if interval % other.terms == 0 and adding.schedule is not None:
                    epilogue = replace(adding.schedule.epilogue, scale_order=order)
                    words = f"scales joined as {order}, promotion every {interval} terms"
                    yield Adding(other, replace(
                        adding.schedule, name=words, sums=Chain(interval), epilogue=epilogue))  # fmt: skip
    if unit.scale is None:
        for fmt in (BF16, FP16, FP32):
            for how in (FusedMultiplyAdd(FP32), Sequential(FP32), Exact(FP32), Exact(FP64)):
                yield Dequantised(fmt, how)
        for name, fmt in (("hopper_bf16_f32", BF16), ("hopper_f16_f32", FP16), ("ampere_bf16_f32", BF16)):
            with suppress(ValueError):
                yield Dequantised(fmt, find_unit(name))
