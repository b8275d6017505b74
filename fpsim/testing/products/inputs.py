"""Inputs that tell kernels apart: shapes around a schedule's boundaries, and operands that show how sums are added."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from fpsim.arrays import Array
from fpsim.deprecation import renamed_arguments
from fpsim.errors import is_integer, require_integer, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import DTYPES
from fpsim.formats.keywords import given_keywords
from fpsim.matrix_units.matrix_unit import SCALES as SCALE_FORMATS
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.draws import drawn
from fpsim.probe.model import Model
from fpsim.probe.operands import ProbedCall, ProbedOperand
from fpsim.probe.words import WORDS
from fpsim.schedules.call import Call
from fpsim.schedules.limits import refusals
from fpsim.schedules.plan import interval_of, plan_of
from fpsim.schedules.schedule import FLAT, Chain, Lanes, Schedule
from fpsim.sums.accumulators import Accumulator
from fpsim.testing.operands import scales as drawn_scales
from fpsim.testing.products.promise import (
    BLOCK,
    DEFAULTS,
    Adding,
    KernelInputs,
    KernelKeywords,
    Promise,
    promise_of,
    with_kernel_keywords,
)

Shape = tuple[int, int, int]
LEAST = 435  # smallest K of the main shape, which tells slices of 128 terms and more from their blocks
LONGEST = 2048  # largest K of the shapes chosen by `shapes_for`
BEYOND = 256  # rows or columns; larger shapes have two kinds of inputs and a small K
FEW = ("masks", "uneven", "cancelling", "ties of the result")  # kinds for shapes other than the main one

SHOWS = {
    "masks": "which terms are added before a large one cancels",
    "uneven": "how partial sums of different magnitudes are joined",
    "seams": "where boundaries of partial sums are",
    "cancelling": "orders of additions, by sums that lose their first bits",
    "alike": "orders of additions among neighbouring terms",
    "wide": "which bits are cut where exponents differ",
    "normal": "usual numbers",
    "positive": "what is cut from sums that only grow",
    "ties": "partial sums at ties, and next to them",
    "layers": "sums that correct themselves, by three magnitudes far apart",
    "ties of the result": "how results halfway between two numbers are rounded",
    "tail": "whether the last terms of K are added",
    "subnormal": "subnormal operands",
    "vanishing": "subnormal products and sums",
    "large": "sums that overflow",
    "zeros": "signs of zeros",
    "special": "infinities and NaN",
    "infinite": "one Inf or NaN in each row, with small and zero factors",
    "faint": "results at and below the smallest number of their format",
}


@renamed_arguments(out_format="out_fmt")
@with_kernel_keywords
def discriminating_inputs(
    *,
    a: FormatLike,
    b: FormatLike | None = None,
    accumulate: str | MatrixUnit | Accumulator,
    **keywords: Unpack[KernelKeywords],
) -> list[KernelInputs]:
    """Return the inputs of `check_kernel`, chosen so that other arithmetic than the promised one gives other results.

    Args:
      a, b, accumulate, schedule, promote, shapes, out_fmt, scale_a, scale_b, bias, seed: as for `check_kernel`.

    Returns:
      Records with `.name`, `.shows` (what the inputs reveal), codes `.a` (M, K) and `.b` (K, N), `.scale_a`, `.scale_b`
      and `.bias` (None unless asked for). The first 3 given `shapes`, or the first default one, have every kind.

    Raises:
      TypeError, ValueError: as for `check_kernel`.

    Example:
      >>> import fpsim as fp
      >>> inputs = fp.testing.discriminating_inputs(a="e4m3", accumulate="hopper_e4m3_f32", promote=128)
      >>> print(inputs[0], "shows", inputs[0].shows)
      masks 16 x 16 x 595 shows which terms are added before a large one cancels
      >>> sorted({one.shape[2] for one in inputs})
      [1, 31, 32, 33, 127, 128, 129, 159, 257, 514, 595]
    """
    promised = given_keywords(discriminating_inputs, keywords, DEFAULTS)
    shapes, seed = promised.pop("shapes", None), promised.pop("seed", 0)
    require_integer("seed", seed, 0)
    return list(inputs_for(promise_of(a, b, accumulate, **promised), shapes, seed))


def inputs_for(promise: Promise, shapes: Sequence[Shape] | None, seed: int) -> Iterator[KernelInputs]:
    """Yield inputs that check `promise`, revealing ones first; shapes None: those of `shapes_for`; seed: for draws."""
    chosen = _allowed_shapes(promise, shapes) if shapes is not None else shapes_for(promise)
    skipped = _unknown_kinds(promise)
    for place, shape in enumerate(chosen):
        kinds: Iterable[str] = SHOWS if place == 0 or (shapes is not None and len(chosen) <= 3) else FEW
        for kind in kinds:
            if kind not in skipped and (max(shape[:2]) <= BEYOND or shapes is not None or kind in FEW[:2]):
                yield made(promise, kind, shape, seed)


def _unknown_kinds(promise: Promise) -> list[str]:
    """Return the kinds of inputs for which a probed model cannot predict results; none without a model."""
    if not isinstance(promise.adding, Model):
        return []
    said = " ".join(promise.adding.unknown)
    unknown = [kind for kind, word in WORDS.items() if word in said]
    more = ["infinite"] * ("special" in unknown) + ["faint"] * ("subnormal" in unknown or "vanishing" in unknown)
    return unknown + more + (["tail", "zeros"] if "zeros" in unknown else [])  # a row whose terms are nearly all zeros


def checked_shapes(shapes: Any) -> list[Shape]:
    """Return the caller's shapes as tuples; raise an error for any but triples (M, N, K) of positive integers."""
    refusal = f"shapes must be triples (M, N, K) of positive integers, such as [(16, 16, 512)]; got {shown(shapes)}."
    try:
        listed = [tuple(shape) for shape in shapes]
    except TypeError:
        raise TypeError(refusal) from None
    if not listed or any(len(s) != 3 or not all(is_integer(x) and x >= 1 for x in s) for s in listed):
        raise ValueError(refusal)
    return [(int(m), int(n), int(k)) for m, n, k in listed]


def _allowed_shapes(promise: Promise, shapes: Any) -> list[Shape]:
    """Return the caller's shapes as tuples; raise an error for any but positive (M, N, K) that the promise allows."""
    checked = checked_shapes(shapes)
    block = promise.unit.block if promise.unit is not None else 0
    for _, _, k in checked:
        if isinstance(promise.adding, Model) and k != promise.adding.n:
            raise ValueError(f"shapes must have K = {promise.adding.n}, which was probed; got {k}.")
        if block and k % block:
            raise ValueError(f"shapes must have a K that is a multiple of {block}, which share a scale; got {k}.")
    return checked


def shapes_for(promise: Promise) -> list[Shape]:
    """Return allowed shapes (M, N, K) around a schedule's boundaries; every kind of inputs is made for the first."""
    adding = promise.adding
    if isinstance(adding, Model):
        return [(*adding.shape, adding.n)]
    main, terms, _ = lengths(promise)
    few = min(main, 2 * terms[-1] if terms else main)
    short = next((k for k in terms if k >= 8), few)
    candidates = [
        (16, 16, main), *((5, 7, k) for k in terms), (1, 33, main), (33, 1, main), (1, 1, few), (130, 66, few),
        (18, 130, few), (258, 258, short), (1030, 66, short), (5, 1030, short),
    ]  # fmt: skip
    schedule = adding.schedule
    if promise.along_k and promise.unit is not None and promise.unit.scale is None:
        candidates[-5] = (130, 130, main)  # several tiles of scales across
    if schedule is None or schedule.library == "fpsim" or not isinstance(adding.how, MatrixUnit):
        return list(dict.fromkeys(candidates))
    kept = [_taken(schedule, adding.how, shape, promise) for shape in candidates]
    return list(dict.fromkeys(shape for shape in kept if shape is not None)) or [(16, 16, main)]


def _taken(schedule: Schedule, unit: MatrixUnit, shape: Shape, promise: Promise) -> Shape | None:
    """Return the first of three shapes that the schedule's library accepts, or None if it accepts none.

    They are `shape`, `shape` rounded up to multiples of 16, and the latter with M = 1.
    """
    up = (-(-shape[0] // 16) * 16, -(-shape[1] // 16) * 16, -(-shape[2] // 16) * 16)
    for candidate in (shape, up, (1, *up[1:])):
        kinds = (promise.scale_a or "none", promise.scale_b or "none")
        if not refusals(Call(schedule, unit, *candidate, *kinds, promise.out)):
            return candidate
    return None


def lengths(promise: Promise) -> tuple[int, list[int], int]:
    """Return (K of the main shape, for which every kind of inputs is made; further K; terms of a partial sum).

    The main K has several partial sums and an incomplete one; the further K, ascending, are next to multiples of a step
    and of a partial sum. Without partial sums, the third number is a grain of slices, an instruction's terms, or 8.
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
    """Return (main K, further K): the K of the shape for which every kind of inputs is made, and those of other shapes.

    The main K has four partial sums and an incomplete one, but at most 2048 terms if `block` is 0. The further K,
    ascending, are 1 and numbers next to multiples of a step and a partial sum. step: terms of an instruction. interval:
    terms of a partial sum; 0 counts as 4 steps, or 64 if that is more. block: all K are multiples of it, if not 0.
    """
    longest = interval or max(4 * step, 64)
    main = max(4 * longest + longest // 2 + step // 2 + 3, LEAST)
    wanted = {1, step - 1, step, step + 1, longest - 1, longest, longest + 1, longest + step - 1, 2 * longest + 1}
    if block:
        rounded = {-(-k // block) * block for k in wanted if k > 0}
        return -(-main // block) * block, sorted(rounded)
    main = min(main, LONGEST)
    return main, sorted(k for k in wanted if 0 < k < main)


def made(promise: Promise, kind: str, shape: Shape, seed: int) -> KernelInputs:
    """Return random inputs of `kind`, in SHOWS, and `shape` (M, N, K), with the scales and bias of `promise`."""
    m, n, k = shape
    a, b = promise.a, promise.b
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), m, n, k])
    if kind in OWN:
        x, y = OWN[kind](rng, promise, shape)
        x, y = _held(a, x), _held(b, y)
    else:
        x, y = drawn(kind, ProbedCall("matmul", k, (a, b), (m, n)), seed)
    scale_a, scale_b = (_scales(promise, side, shape, seed) for side in (0, 1))
    bias = (rng.standard_normal(n) * 2.0 ** rng.integers(-3, 6, n)).astype(np.float32) if promise.bias else None
    with np.errstate(all="ignore"):
        return KernelInputs(kind, SHOWS[kind], a.passed(x), b.passed(y), scale_a, scale_b, bias)


def _held(operand: ProbedOperand, values: Array) -> Array:
    """Return float64 values rounded to an operand's format, as float64; infinities and NaN are unchanged."""
    finite = np.isfinite(values)
    return np.where(finite, operand.drawn(np.where(finite, values, 0.0)), values)


def _scales(promise: Promise, side: int, shape: Shape, seed: int) -> Array | None:
    """Return random scales of a (side 0) or b (side 1) of a product of `shape` (M, N, K); None if `promise` has none.

    `promise` names their layout, such as "row" for (M, 1) of a and (1, N) of b. They are float32; for the layout
    "block" they are codes in the dtype of the unit's scale format, (M, K / block) or (K / block, N). seed: seed of the
    draws.
    """
    word = (promise.scale_a, promise.scale_b)[side]
    if not word:
        return None
    lines, k = shape[side], shape[2]
    if word == "block":
        unit = promise.unit
        assert unit is not None
        assert unit.scale is not None
        rng = np.random.default_rng([seed, side, lines, k])
        low, high = (124, 131) if unit.scale == "ue8m0" else (0x28, 0x50)
        codes = rng.integers(low, high, (lines, k // unit.block)).astype(np.uint8)
        codes = codes if side == 0 else np.ascontiguousarray(codes.T)
        return codes.view(DTYPES[SCALE_FORMATS[unit.scale]])
    along = -(-k // BLOCK)
    of_a = {"tensor": (1, 1), "row": (lines, 1), "1x128": (lines, along), "128x128": (-(-lines // BLOCK), along)}[word]
    return drawn_scales(of_a if side == 0 else of_a[::-1], seed + side)


Pair = tuple[Array, Array]


def _masks(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw float64 a and b of `shape` (M, N, K) for `promise`: in each row of a, 2 large terms at random k cancel."""
    pairs = [tuple(rng.choice(shape[2], 2, replace=False)) if shape[2] > 1 else (0, 0) for _ in range(shape[0])]
    return _large_pairs(rng, promise, shape, pairs)


def _seams(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw float64 a and b of `shape` (M, N, K): 2 large terms per row, at one of `boundaries(promise, K)`, cancel."""
    k = shape[2]
    seams = sorted({s for s in boundaries(promise, k) if 0 < s < k}) or [k // 2]
    pairs = []
    for row in range(shape[0]):
        seam = int(rng.choice(seams))
        first = max(seam - 1 - int(rng.integers(0, 3)) * (row % 2), 0)
        pairs.append((first, min(seam + int(rng.integers(0, 3)), k - 1)))
    return _large_pairs(rng, promise, shape, pairs)


def boundaries(promise: Promise, k: int) -> list[int]:
    """Return sorted indices where partial sums may begin: 2**3..2**11, 3 * 2**4..3 * 2**9, and the schedule's for k."""
    starts = {1 << i for i in range(3, 12)} | {3 << i for i in range(4, 10)}
    if isinstance(promise.adding, Adding) and promise.chain is not None:
        plan = plan_of(promise.adding.schedule or FLAT, promise.chain, k)
        starts |= {run.start for part in plan.slices for run in part.runs}
        starts |= {part.runs[0].start + block.start for part in plan.slices for block in part.blocks}
    return sorted(starts)


def _large_pairs(rng: np.random.Generator, promise: Promise, shape: Shape, pairs: list[Any]) -> Pair:
    """Draw float64 a and b of `shape` (M, N, K) for `promise`: in each row of a, two large terms cancel.

    pairs: for each row of a, the indices of its large terms; if they are equal, the row has one.
    """
    m, n, k = shape
    _, high = promise.a.exponents
    a = rng.choice([-1.0, 1.0], (m, k)) * rng.uniform(1, 2, (m, k)) * 2.0 ** rng.integers(-3, 2, (m, 1))
    b = rng.uniform(1, 2, (k, n)) * rng.choice([1.0, 1.0, -1.0], (k, n))
    for row, (i, j) in enumerate(pairs):
        a[row, i] = 2.0 ** rng.integers(min(4, high), min(high, 28) + 1)
        if i != j:
            a[row, j] = -a[row, i]
    for i, j in pairs:  # columns that make the two cancel
        b[j] = b[i]
    by = 2.0 ** rng.integers(0, max(min(promise.b.exponents[1], 12), 1), (1, n))
    return a, b * by


def _uneven(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw float64 a and b of `shape` (M, N, K): partial sums of `promise` differ in exponent; adding them rounds."""
    m, n, k = shape
    size = lengths(promise)[2] if isinstance(promise.adding, Adding) else 8
    run = np.arange(k) // max(size, 1)
    sides = []
    for operand, length in zip((promise.a, promise.b), (m, n), strict=True):
        high = operand.exponents[1]
        span = max(min(10, (high - operand.fmt.min_exponent) // 2), 1)
        middle = min(max(0, operand.fmt.min_exponent + span), high - span)
        by = 2.0 ** (middle + rng.integers(-span, span + 1, (length, run[-1] + 1)))[:, run]
        sides.append(rng.uniform(1, 2, (length, k)) * rng.choice([-1.0, 1.0], (length, k)) * by)
    return sides[0], sides[1].T


def _tail(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw N(0, 1) for a and b of `shape` (M, N, K); row i of a is 0 but for its last 1 + i * max(K // 24, 1) terms."""
    m, n, k = shape
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    kept = np.minimum(1 + np.arange(m) * max(k // 24, 1), k)
    a[np.arange(k)[None, :] < (k - kept)[:, None]] = 0.0
    return a, b


def _infinite(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw N(0, 1) for a and b of `shape` (M, N, K); then set one element of each row of a to Inf, NaN or +-largest.

    Rows of b that meet these elements get values 1, -1, 0 and tiny ones. promise: the arithmetic, for its formats.
    """
    m, n, k = shape
    fmt, other = promise.a.fmt, promise.b.fmt
    some = [fmt.max, -fmt.max] + [np.inf, -np.inf] * fmt.has_infinity + [np.nan] * fmt.has_nan
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    places = rng.integers(0, k, m)
    b[places] = rng.choice([1.0, -1.0, 0.0, other.smallest_normal, 1.5 * other.smallest_normal], (m, n))
    a[np.arange(m), places] = rng.choice(some, m)
    return a, b


def _faint(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw float64 a and b of `shape` (M, N, K) whose products are near the smallest value of the result of `promise`.

    Only the first i + 1 elements of row i of a are not zero.
    """
    m, n, k = shape
    out = promise.out
    smallest = int(np.log2(out.smallest_subnormal or out.smallest_normal))
    low = [operand.exponents[0] for operand in (promise.a, promise.b)]
    first = max(smallest // 2, low[0] + 3)
    second = max(smallest - first, low[1] + 3)
    sides = []
    for exponent, size in ((first, (m, k)), (second, (k, n))):
        mantissas = rng.uniform(1, 2, size) * rng.choice([-1.0, 1.0], size)
        sides.append(np.ldexp(mantissas, rng.integers(-4, 3, size) + exponent))
    kept = np.minimum(1 + np.arange(m), k)  # few terms a row, so that sums stay small
    sides[0][np.arange(k)[None, :] >= kept[:, None]] = 0.0
    return sides[0], sides[1]


def _result_ties(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw integers, float64 a and b of `shape` (M, N, K), whose sums are often ties of the result format of `promise`.

    Sums are around 2**(precision of that format). In half of the columns, a last term of +-1/64 moves them off ties.
    """
    m, n, k = shape
    largest = [2.0 ** min(operand.fmt.mantissa_bits + 1, 11) for operand in (promise.a, promise.b)]
    size = min(np.sqrt(3 * 1.5 * 2.0**promise.out.precision / np.sqrt(k)), *largest)
    limit = max(int(size), 1)
    a, b = (rng.integers(-limit, limit + 1, s).astype(np.float64) for s in ((m, k), (k, n)))
    if k > 2:
        a[:, -1], b[-1] = 2.0**-3, rng.choice([-(2.0**-3), 0.0, 2.0**-3], n, p=[0.25, 0.5, 0.25])
    return a, b


OWN = {"masks": _masks, "uneven": _uneven, "seams": _seams, "tail": _tail, "ties of the result": _result_ties,
       "infinite": _infinite, "faint": _faint}  # fmt: skip
