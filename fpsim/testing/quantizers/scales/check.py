"""Checks quantizers with scales: codes, scales of both levels, zero points, layouts and large matrices."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.cast import decode
from fpsim.formats.element import Element, element_format
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import E8M0, FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tiling
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.black_box import CalledQuantizer, QuantizerMisbehaved
from fpsim.testing.quantizers.family import UNROUNDED
from fpsim.testing.quantizers.properties import LAYOUTS, SECONDS_OF_A_CALL
from fpsim.testing.quantizers.report import Broken, QuantizerReport, broken_at
from fpsim.testing.quantizers.rounder import Words, words_of
from fpsim.testing.quantizers.scales.cases import cases_for, partial_cases, special_cases
from fpsim.testing.quantizers.scales.identity import (
    CHOICES,
    LISTED,
    RULES,
    ScalingIdentity,
    called,
    difference,
    differing,
    fault_beside,
    identified,
    layouts_of,
    same_scales,
    unrounded,
    words_of_codes,
)
from fpsim.testing.quantizers.scales.results import ReturnedParts
from fpsim.testing.quantizers.scales.zero_point_faults import zero_point_causes

UNUSUAL = ("an Inf", "a NaN")  # matrices that recipes treat each in their own way
EXTREME = (
    "a tile of zeros",
    "very small values",
    "very large values",
    "subnormal values",
    "a largest magnitude of a few subnormals",
)  # further ones
LARGE = (1 << 20, 1 << 17, 1 << 15)  # elements of a large one, as many as a function has time for


def check_scaled(
    fn: Callable[..., Any], fmt: Any, scaling: Scaling | str, rounding: str | Rounding, overflow: str | None,
    subnormals: str, seed: int | None,
) -> QuantizerReport:  # fmt: skip
    """`check_quantizer` with a scaling."""
    scaling = scaling_of(scaling)
    element = element_format(fmt)
    box = CalledQuantizer(fn, element if isinstance(element, Format) else FP32)
    cast: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals, "seed": seed}
    words_asked = {"scaling": scaling, **{name: value for name, value in cast.items() if value is not None}}
    encode_scaled(np.ones((1, 1), np.float32), element, scaling, **cast)  # refuses what cannot be asked
    check = ScaledCheck(fn, box.name, element, scaling, cast)
    held, broken, cases = check.held, check.broken, check.cases
    try:
        plain = cases_for(scaling, element)
        for name, x in plain.items():
            check.compare(name, x)
        for name, x in partial_cases(plain, scaling).items():
            check.compare(name, x, "partial tiles")
        for name, x in special_cases(plain["ordinary tiles"], scaling).items():
            check.compare(name, x)
        check.compare_layouts(plain["elements at ties"])
        check.compare_large(plain["elements at ties"])
        held.update(dict.fromkeys(("leaves its input alone", "calls")))
    except QuantizerMisbehaved as refusal:
        broken[refusal.property] = Broken(refusal.property, refusal.sentence)
    wrong, of = check.wrong, check.of
    fields: dict[str, Any] = {"differ": wrong, "of": of}
    if cases and "calls" not in broken and "runs" not in broken and "returns" not in broken:
        kept = {name: cast[name] for name in ("rounding", "subnormals", "seed")}
        found = identified(cases, element, kept, not scaling.symmetric)
        others = tuple(repr(rival) for rival in found.rivals if rival != scaling)
        fields |= {"excluded": found.excluded, "rivals": others[:LISTED], "unexplained": found.differ if wrong else 0}
        if wrong and unrounded(cases):
            fields |= {"causes": (UNROUNDED,), "unexplained": 0}
            fields["diagnosis"] = f"all have one cause: it {UNROUNDED} (0 differ from that)"
        elif wrong:
            fields |= _cause(found, scaling)
            if not found.exact:
                whole = fault_beside(cases, element, [scaling, *_akin(scaling), found.scaling], cast)
                matrices = dict(zip(check.counts, cases, strict=True))
                fields |= whole or _usual_fault(matrices, check.counts, element, scaling, cast)
        if wrong and not fields.get("causes"):
            fields |= _cause_of_codes(cases, element, scaling, cast)
        if wrong and not fields.get("causes") and isinstance(element, IntegerFormat) and not scaling.symmetric:
            fields |= _cause_beside_scales(
                dict(zip(check.counts, cases, strict=True)), check.counts, element, scaling, cast
            )
    elif "calls" in broken:
        fields |= fault_beside(cases, element, [scaling], cast)
    if broken and not wrong and not fields.get("diagnosis"):
        fields["diagnosis"] = f"what came for small matrices in C order is right; wrong is: {', '.join(broken)}"
    order = tuple(name for name in held if name not in broken)
    covered, notes = check.covered.coverage, tuple(check.notes)
    return QuantizerReport(
        box.name, element, words_asked, order, tuple(broken.values()), covered=covered, notes=notes, **fields
    )


class ScaledCheck:
    """Calls a quantizer with matrices, and collects what holds and what does not.

    Args:
      fn, name: the function, and what reports call it.
      fmt, scaling, cast: what it promises.
    """

    def __init__(self, fn: Callable[..., Any], name: str, fmt: Element, scaling: Scaling, cast: dict[str, Any]) -> None:
        self.fn, self.name, self.fmt, self.scaling, self.cast = fn, name, fmt, scaling, cast
        self.held: dict[str, None] = {}
        self.broken: dict[str, Broken] = {}
        self.notes: dict[str, None] = {}
        self.cases: list[tuple[Array, ReturnedParts]] = []
        self.wrong, self.of = 0, 0
        self.counts: dict[str, int] = {}  # of what differs, by matrix
        self.covered = CoverageRecord()

    def call(self, x: Array, layout: str = "") -> ReturnedParts:
        """Return the parts of a result."""
        return called(self.fn, x, self.fmt, self.scaling, self.covered, layout)

    def compare(self, case: str, x: Array, may_refuse: str = "") -> None:
        """Compare the results for one matrix; may_refuse: what the function may refuse, which is then a note."""
        try:
            parts = self.call(x.copy())
        except QuantizerMisbehaved as refusal:
            if refusal.property != "runs" or not may_refuse:
                raise
            self.notes[f"it refuses {may_refuse}: {refusal.sentence}"] = None
            return
        again = self.call(x.copy())
        self.cases.append((x, parts))
        if not _same_parts(parts, again):
            self.broken["calls"] = Broken("calls", f"fn is not deterministic: the same call on {case} differs")
        right = RightParts.of(x, self.fmt, self.scaling, self.cast)
        here, size = _compare(self.name, case, x, parts, right, self.held, self.broken)
        self.wrong, self.of = self.wrong + here, self.of + size
        self.counts[case] = here

    def compare_layouts(self, x: Array) -> None:
        """Compare the results for the same matrix in other memory layouts."""
        want = self.call(x.copy())
        refused: dict[str, str] = {}
        for name, layout in LAYOUTS.items():
            if layout.axes != 2:
                continue
            try:
                got = self.call(layout.make(x), name)
            except QuantizerMisbehaved as refusal:
                if refusal.property != "runs":
                    raise
                refused[name] = refusal.sentence
                continue
            if _same_parts(want, got):
                self.held.setdefault("layout", None)
            else:
                why = f"a matrix with the layout '{name}' gives other results than one in C order"
                self.broken.setdefault("layout", Broken("layout", why))

        if refused:
            self.notes[f"it refuses the layouts {', '.join(refused)}: {next(iter(refused.values()))}"] = None

    def compare_large(self, x: Array) -> None:
        """Compare the results for a matrix that repeats a small one, whose results repeat as well."""
        if self.cast["seed"] is not None:
            self.notes["stochastic rounding was compared on small matrices alone"] = None
            return
        medium = np.tile(x, (-(-LARGE[-1] // x.size), 1))
        self.call(medium)  # which may compile something
        start = time.process_time()
        self.call(medium)
        pace = (time.process_time() - start) / medium.size
        size = next((size for size in LARGE if size * pace <= SECONDS_OF_A_CALL), LARGE[-1])
        across = max(1, -(-1030 // x.shape[1]))
        times = (-(-size // (x.size * across)), across)
        large = np.tile(x, times)
        small = RightParts.of(x, self.fmt, self.scaling, self.cast)
        parts = self.call(large)
        right = small.repeated(x.shape, times, tiling(large.shape, self.scaling.block).grid)
        held: dict[str, None] = {}
        broken: dict[str, Broken] = {}
        _compare(self.name, f"a matrix of shape {large.shape}", large, parts, right, held, broken)
        if not broken:
            self.held["size"] = None
        elif not self.wrong:
            first = next(iter(broken.values()))
            why = f"a matrix of shape {large.shape} is wrong, where small ones are right: {first.property}, {first.why}"
            self.broken["size"] = dataclasses.replace(first, property="size", why=why)


class RightParts(NamedTuple):
    """The right results for a matrix: codes, values, scales of both levels, the tensor scale and zero points."""

    fmt: Element
    scaling: Scaling
    codes: Words
    values: Words
    scales: Array
    block_scales: Array
    tensor_scale: np.float32 | None
    zero_points: Array | None

    @staticmethod
    def of(x: Array, fmt: Element, scaling: Scaling, cast: dict[str, Any]) -> RightParts:
        """Return what `fpsim.encode_scaled` gives."""
        q = encode_scaled(x, fmt, scaling, **cast)
        codes = q.codes.ravel()
        of_codes = words_of_codes(fmt)[codes] if isinstance(fmt, Format) else words_of(codes.astype(np.float64))
        values = words_of(np.asarray(q.decode().ravel().astype(np.float64)))
        blocks = q.scales
        if q.tensor_scale is not None and q.scale_codes is not None:
            blocks = np.asarray(decode(q.scale_codes, scaling.scale_format), np.float32)
        zero_points = q.zero_points if isinstance(fmt, IntegerFormat) else None  # of LogFMT these are lowest levels
        return RightParts(fmt, scaling, of_codes, values, q.scales, blocks, q.tensor_scale, zero_points)

    def repeated(self, shape: tuple[int, ...], times: tuple[int, int], grid: tuple[int, ...]) -> RightParts:
        """Return the same for a matrix that repeats one of a shape."""
        tiles = tuple(new // old for new, old in zip(grid, self.scales.shape, strict=True))
        codes, values = (np.tile(part.reshape(shape), times).ravel() for part in (self.codes, self.values))
        zero_points = None if self.zero_points is None else np.tile(self.zero_points, tiles)
        return self._replace(
            codes=codes, values=values, scales=np.tile(self.scales, tiles),
            block_scales=np.tile(self.block_scales, tiles), zero_points=zero_points,
        )  # fmt: skip


def _compare(
    call: str, case: str, x: Array, parts: ReturnedParts, right: RightParts, held: dict[str, None],
    broken: dict[str, Broken],
) -> tuple[int, int]:  # fmt: skip
    """Note which of codes, scales and axis hold on one matrix; how many elements and scales differ, of how many."""
    shown_fmt = right.fmt if isinstance(right.fmt, Format) else FP32
    if parts.scales is None:
        differ = parts.elements != right.values
        _elements("values", call, case, x, parts.elements, right.values, differ, shown_fmt, held, broken)
        return int(differ.sum()), x.size
    differ = parts.elements != right.codes
    wrong, of = int(differ.sum()), x.size
    _elements("codes", call, case, x, parts.elements, right.codes, differ, shown_fmt, held, broken)
    scales, came = (
        (right.scales, parts.scales) if parts.block_scales is None else (right.block_scales, parts.block_scales)
    )
    more_wrong, more = _per_tile("scales", case, x, came, scales, held, broken)
    wrong, of = wrong + more_wrong, of + more
    if parts.tensor_scale is not None and right.tensor_scale is not None:
        came, want = (np.full((1, 1), scale, np.float32) for scale in (parts.tensor_scale, right.tensor_scale))
        wrong += _per_tile("tensor scale", case, x, came, want, held, broken)[0]
        of += 1
    if right.zero_points is not None:
        if parts.zero_points is None:
            broken.setdefault("zero points", Broken("zero points", "fn must return (codes, scales, zero points)"))
            return wrong + right.zero_points.size, of + right.zero_points.size
        came, want = (part.astype(np.float32) for part in (parts.zero_points, right.zero_points))
        more_wrong, more = _per_tile("zero points", case, x, came, want, held, broken)
        wrong, of = wrong + more_wrong, of + more
    return wrong, of


def _per_tile(
    name: str, case: str, x: Array, came: Array, want: Array, held: dict[str, None], broken: dict[str, Broken]
) -> tuple[int, int]:
    """Note whether numbers of tiles hold, and the axis along which they lie; how many differ, of how many."""
    readings = dict(layouts_of(came, want.shape))
    if "tiles" not in readings:
        turned = want.shape[::-1] == came.shape
        why = f"{name} have shape {came.shape}, want {want.shape}"
        broken.setdefault("axis", Broken("axis", why + (": they lie along the other axis" if turned else "")))
        return want.size, want.size
    held.setdefault("axis", None)
    same = same_scales(np.ascontiguousarray(readings["tiles"]), want)
    if same.all():
        held.setdefault(name, None)
        return 0, want.size
    tile = tuple(int(i) for i in np.argwhere(~same)[0])
    got, right = float(readings["tiles"][tile]), float(want[tile])
    numbers = [f"{number.hex()} ({number!r})" if name != "zero points" else f"{number:g}" for number in (got, right)]
    broken.setdefault(
        name,
        Broken(
            name, f"with {case}, that of tile {tile}", got=numbers[0], want=numbers[1],
            input=f"tile {tile} of a matrix of shape {x.shape}", count=int((~same).sum()), of=same.size,
        ),
    )  # fmt: skip
    return int((~same).sum()), want.size


def _elements(
    name: str, call: str, case: str, x: Array, got: Words, want: Words, differ: Any, fmt: Format,
    held: dict[str, None], broken: dict[str, Broken],
) -> None:  # fmt: skip
    if not differ.any():
        held.setdefault(name, None)
        return
    at = int(np.argmax(differ))
    place = tuple(int(i) for i in np.unravel_index(at, x.shape))
    if name == "codes":
        one = broken_at(name, x.ravel()[[at]], got[at], want[at], fmt, call)
        shown_got, shown_want = one.got, one.want
    else:
        shown_got, shown_want = (repr(float(pattern.view(np.float64))) for pattern in (got[at], want[at]))
    broken.setdefault(
        name,
        Broken(
            name, f"with {case}, the element at {place}", input_bits=int(words(x.ravel())[at]),
            input=f"x[{place[0]}, {place[1]}] = {pasted(x.ravel()[at])}", got=shown_got, want=shown_want,
            count=int(differ.sum()), of=x.size,
        ),
    )  # fmt: skip


def _cause(found: ScalingIdentity, scaling: Scaling) -> dict[str, Any]:
    if not found.exact:
        return {"diagnosis": f"no recipe that was tried explains all. {found}"}
    causes = difference(found.scaling, scaling)
    if found.layout not in ("tiles", "values"):
        causes.append(f"lays its scales out as {found.layout}")
    name = f" = fp.scalings.{found.names[0]}" if found.names else ""
    text = f"all have one cause: it {'; it '.join(causes)}{name} (0 differ from that)"
    return {"causes": tuple(causes), "diagnosis": text, "unexplained": 0}


def _cause_of_codes(
    cases: list[tuple[Array, ReturnedParts]], fmt: Element, scaling: Scaling, cast: dict[str, Any]
) -> dict[str, Any]:
    """Return the cause where codes or zero points that came are right ones in another order, or moved."""
    rights = [(parts, RightParts.of(x, fmt, scaling, cast)) for x, parts in cases]
    if all(parts.swapped is not None and (parts.swapped == right.codes).all() for parts, right in rights):
        return _one_cause("packs the first of two codes in the high bits of a byte, not in the low ones")
    if not isinstance(fmt, IntegerFormat) or scaling.symmetric:
        return {}
    pairs = [_points_and_codes(parts, right) for parts, right in rights]
    shifts = [
        _shift([pair[part] for pair in pairs if pair is not None], fmt) if None not in pairs else None
        for part in (0, 1)
    ]
    of_points, of_codes = shifts
    if of_points is None or of_codes is None:
        return {}
    if of_points == of_codes:
        return _one_cause(f"has zero points that are off by {of_points:+d}")
    if of_codes == 0:
        return _one_cause(f"returns zero points that are off by {of_points:+d}, and codes of the right ones")
    if of_points == 0:
        return _one_cause(f"adds zero points that are off by {of_codes:+d}, and returns the right ones")
    return {}


def _cause_beside_scales(
    cases: dict[str, tuple[Array, ReturnedParts]], counts: dict[str, int], fmt: IntegerFormat, scaling: Scaling,
    cast: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the cause where scales are right, and elements or zero points round, wrap or are added in another way."""
    rounding = rounding_mode(cast["rounding"]).name.lower()
    for unusual in (UNUSUAL, (*UNUSUAL, *EXTREME)):
        kept = [case for name, case in cases.items() if name not in unusual]
        causes = zero_point_causes(kept, fmt, scaling, rounding)
        if causes:
            left = sum(counts[name] for name in unusual if name in counts)
            apart = f" With {' and '.join(unusual)}, which are left out of that, {left:,} differ." if left else ""
            whole = "all have one cause" if len(causes) == 1 else f"{len(causes)} causes together explain all"
            text = f"{whole}: it {'; it '.join(causes)} (0 differ from that).{apart}"
            return {"causes": causes, "diagnosis": text, "unexplained": left}
    return {}


def _one_cause(clause: str) -> dict[str, Any]:
    return {"causes": (clause,), "diagnosis": f"all have one cause: it {clause} (0 differ from that)", "unexplained": 0}


Pair = tuple[Array, Array]  # what came, and what was wanted, as integers


def _points_and_codes(parts: ReturnedParts, right: RightParts) -> tuple[Pair, Pair] | None:
    """Return zero points and codes that came with the wanted ones; None where scales or shapes differ."""
    if parts.zero_points is None or right.zero_points is None or parts.scales is None:
        return None
    points = dict(layouts_of(parts.zero_points, right.zero_points.shape)).get("tiles")
    scales = dict(layouts_of(parts.scales, right.scales.shape)).get("tiles")
    if points is None or scales is None or not same_scales(np.ascontiguousarray(scales), right.scales).all():
        return None
    codes, right_codes = (words_.view(np.float64).astype(np.int64) for words_ in (parts.elements, right.codes))
    return (points.ravel(), right.zero_points.ravel().astype(np.int64)), (codes, right_codes)


def _shift(pairs: list[Pair], fmt: IntegerFormat) -> int | None:
    """Return by how much all integers are off, those at an end of the range aside; None where it is no one number."""
    came, want = (np.concatenate([pair[place] for pair in pairs]) for place in (0, 1))
    inner = (want > fmt.lowest) & (want < fmt.highest)
    shift = int(np.median((came - want)[inner])) if inner.any() else 0
    moved = want + shift
    return shift if ((came == np.clip(moved, fmt.lowest, fmt.highest)) | (came == moved)).all() else None


def _same_parts(one: ReturnedParts, other: ReturnedParts) -> bool:
    if (one.elements != other.elements).any() or one.tensor_scale != other.tensor_scale:
        return False
    points = [np.zeros(0) if parts.zero_points is None else parts.zero_points for parts in (one, other)]
    if not np.array_equal(points[0], points[1]):
        return False
    if one.scales is None or other.scales is None:
        return one.scales is other.scales
    return one.scales.shape == other.scales.shape and bool(same_scales(one.scales, other.scales).all())


def _usual_fault(
    cases: dict[str, tuple[Array, ReturnedParts]], counts: dict[str, int], fmt: Element, scaling: Scaling,
    cast: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the cause of what differs in matrices of usual values, where those with Inf and NaN have another one.

    counts: how many results of each matrix differ.
    """
    usual = {name: cast[name] for name in ("rounding", "subnormals", "seed")}
    for unusual in (UNUSUAL, (*UNUSUAL, *EXTREME)):
        kept = [case for name, case in cases.items() if name not in unusual]
        found = identified(kept, fmt, usual, not scaling.symmetric)
        if found.exact:
            found = dataclasses.replace(found, scaling=_nearest(kept, fmt, found.scaling, scaling, usual), names=())
        apart = [name for name in unusual if counts.get(name)]
        left, where = sum(counts[name] for name in apart), " and ".join(apart)
        fields = (
            _cause(found, scaling)
            if found.exact
            else fault_beside(kept, fmt, [scaling, *_akin(scaling), found.scaling], cast)
        )
        if not fields:
            continue
        if not fields["causes"]:
            causes: tuple[str, ...] = (f"treats matrices with {where} as no recipe that was tried does",)
            return {"causes": causes, "diagnosis": f"it {causes[0]} ({left:,} differ)", "unexplained": left}
        text = f"{fields['diagnosis'].rstrip('.')}. With {where}, which are left out of that, {left:,} differ."
        return {**fields, "diagnosis": text, "unexplained": left}
    return {}


def _nearest(
    cases: list[tuple[Array, ReturnedParts]], fmt: Element, found: Scaling, promised: Scaling, cast: dict[str, Any]
) -> Scaling:
    """Return a scaling that gives all too, with as many fields of the promised one as possible."""
    for name in CHOICES:
        try:
            other = found.replace(**{name: getattr(promised, name)})
        except ValueError:
            continue  # no such combination
        if other != found and differing(cases, fmt, other, cast)[0] == 0:
            found = other
    return found


def _akin(scaling: Scaling) -> Iterator[Scaling]:
    """Yield a scaling with each other rule for its scales."""
    for rule in dict.fromkeys(row["scale_rule"] for row in RULES if "scale_rule" in row):
        other = None if scaling.scale_format != E8M0 else _changed_rule(scaling, rule)
        if other is not None and other != scaling:
            yield other


def _changed_rule(scaling: Scaling, rule: str) -> Scaling | None:
    try:
        return scaling.replace(scale_rule=rule, scale_rounding=None)
    except ValueError:
        return None  # no such combination
