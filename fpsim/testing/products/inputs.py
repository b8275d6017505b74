"""Inputs that tell kernels apart: operands of products whose results show how sums are added."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from fpsim.arrays import Array
from fpsim.deprecation import renamed_arguments
from fpsim.errors import require_integer
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import DTYPES
from fpsim.formats.keywords import given_keywords
from fpsim.matrix_units.matrix_unit import SCALES as SCALE_FORMATS
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.draws import drawn
from fpsim.probe.model import Model
from fpsim.probe.operands import ProbedCall, ProbedOperand
from fpsim.probe.words import WORDS
from fpsim.schedules.plan import plan_of
from fpsim.schedules.schedule import FLAT
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
from fpsim.testing.products.shapes import Shape, checked_shapes, lengths, shapes_for

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


# Format of block scales -> the smallest code, and the first that is too large; the same for some kinds of inputs.
BLOCK_SCALES = {"ue8m0": (124, 131), "ue4m3": (0x28, 0x50)}
UNUSUAL_SCALES = {
    "ue8m0": {"large": (150, 195), **dict.fromkeys(("subnormal", "vanishing", "faint"), (50, 72))},
    "ue4m3": {"large": (0x70, 0x7C), **dict.fromkeys(("subnormal", "vanishing", "faint"), (0, 0x10))},
}
SPECIAL_SCALES = {"ue8m0": (0xFF, 0xFE, 0x00), "ue4m3": (0x7F, 0x7E, 0x00)}  # NaN, the largest, the smallest


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
      and `.bias` (None unless asked for). There are inputs of every kind for the first shape, and for all
      shapes if at most 3 are passed as `shapes`; for other shapes there are inputs of a few kinds.

    Raises:
      TypeError, ValueError: as for `check_kernel`.

    Example:
      >>> import fpsim as fp
      >>> inputs = fp.testing.discriminating_inputs(a="e4m3", accumulate="hopper_e4m3_f32", promote=128)
      >>> print(inputs[0], "shows", inputs[0].shows)
      masks 16 x 16 x 595 shows which terms are added before a large one cancels
      >>> sorted({one.shape[2] for one in inputs})
      [1, 31, 32, 33, 127, 128, 129, 136, 144, 159, 160, 192, 257, 320, 514, 595]
    """
    promised = given_keywords(discriminating_inputs, keywords, DEFAULTS)
    shapes, seed = promised.pop("shapes", None), promised.pop("seed", 0)
    require_integer("seed", seed, 0)
    return list(inputs_for(promise_of(a, b, accumulate, **promised), shapes, seed))


def inputs_for(promise: Promise, shapes: Sequence[Shape] | None, seed: int) -> Iterator[KernelInputs]:
    """Yield inputs that check a kernel's promised arithmetic, first those that exclude the most other arithmetics.

    promise: the arithmetic that the kernel claims. shapes: (M, N, K) of the products; None for the shapes that
    `shapes_for` returns. seed: seed of the random numbers.
    """
    chosen = checked_shapes(shapes, promise) if shapes is not None else shapes_for(promise)
    skipped = _unknown_kinds(promise)
    for place, shape in enumerate(chosen):
        kinds: Iterable[str] = SHOWS if place == 0 or (shapes is not None and len(chosen) <= 3) else FEW
        for kind in kinds:
            if kind not in skipped and (max(shape[:2]) <= BEYOND or shapes is not None or kind in FEW[:2]):
                yield made(promise, kind, shape, seed)


def _unknown_kinds(promise: Promise) -> list[str]:
    """Return the kinds of inputs for which a promised model cannot predict results; [] if no model is promised.

    promise: the arithmetic that a kernel claims: a model made by `fpsim.probe`, a unit or an accumulator.
    """
    if not isinstance(promise.adding, Model):
        return []
    said = " ".join(promise.adding.unknown)
    unknown = [kind for kind, word in WORDS.items() if word in said]
    more = ["infinite"] * ("special" in unknown) + ["faint"] * ("subnormal" in unknown or "vanishing" in unknown)
    return unknown + more + (["tail", "zeros"] if "zeros" in unknown else [])  # a row whose terms are nearly all zeros


def made(promise: Promise, kind: str, shape: Shape, seed: int) -> KernelInputs:
    """Return random inputs of one kind for a product of `shape` (M, N, K), with any scales and bias of `promise`.

    kind: a key of SHOWS, such as "masks". promise: the arithmetic that a kernel claims. seed: seed of the draws.
    """
    m, n, k = shape
    a, b = promise.a, promise.b
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), m, n, k])
    if kind in OWN:
        x, y = OWN[kind](rng, promise, shape)
        x, y = _held(a, x), _held(b, y)
    else:
        x, y = drawn(kind, ProbedCall("matmul", k, (a, b), (m, n)), seed)
    scale_a, scale_b = (_scales(promise, side, shape, seed, kind) for side in (0, 1))
    bias = (rng.standard_normal(n) * 2.0 ** rng.integers(-3, 6, n)).astype(np.float32) if promise.bias else None
    with np.errstate(all="ignore"):
        return KernelInputs(kind, SHOWS[kind], a.passed(x), b.passed(y), scale_a, scale_b, bias)


def _held(operand: ProbedOperand, values: Array) -> Array:
    """Return float64 values rounded to the format of `operand`, as float64; infinities and NaN are unchanged."""
    finite = np.isfinite(values)
    return np.where(finite, operand.drawn(np.where(finite, values, 0.0)), values)


def _scales(promise: Promise, side: int, shape: Shape, seed: int, kind: str) -> Array | None:
    """Return random scales of a (side 0) or b (side 1) of a product of `shape` (M, N, K); None if `promise` has none.

    `promise` names their layout, such as "row" for (M, 1) of a and (1, N) of b. They are float32; for the layout
    "block" they are codes in the dtype of the unit's scale format, (M, K / block) or (K / block, N). seed: seed of the
    draws. kind: kind of the inputs, a key of SHOWS, by which block scales are ordinary, large, small or special.
    """
    word = (promise.scale_a, promise.scale_b)[side]
    if not word:
        return None
    lines, k = shape[side], shape[2]
    if word == "block":
        unit = promise.unit
        assert unit is not None
        assert unit.scale is not None
        codes = _block_scales(np.random.default_rng([seed, side, lines, k]), unit.scale, (lines, k // unit.block), kind)
        codes = codes if side == 0 else np.ascontiguousarray(codes.T)
        return codes.view(DTYPES[SCALE_FORMATS[unit.scale]])
    along = -(-k // BLOCK)
    of_a = {"tensor": (1, 1), "row": (lines, 1), "1x128": (lines, along), "128x128": (-(-lines // BLOCK), along)}[word]
    return drawn_scales(of_a if side == 0 else of_a[::-1], seed + side)


def _block_scales(rng: np.random.Generator, scale: str, shape: tuple[int, int], kind: str) -> Array:
    """Return random codes of block scales, uint8 (rows or columns, blocks), of the format `scale` in SCALE_FORMATS.

    kind: kind of the inputs, a key of SHOWS. "large": products of two scales leave the range of float32, if the scale
    format allows it. "subnormal", "vanishing", "faint": products are next to its smallest numbers, or 0. "special": in
    every fourth row one scale is NaN, the largest or the smallest one.
    """
    ordinary, unusual = BLOCK_SCALES[scale], UNUSUAL_SCALES[scale]
    if kind in unusual:  # rows of different magnitude
        codes = rng.integers(*unusual[kind], (shape[0], 1), dtype=np.uint8) + rng.integers(0, 4, shape, dtype=np.uint8)
    else:
        codes = rng.integers(*ordinary, shape, dtype=np.uint8)
    if kind == "special" and codes.size:
        rows = np.arange(1, shape[0], 4)
        codes[rows, rng.integers(0, shape[1], rows.size)] = np.resize(SPECIAL_SCALES[scale], rows.size)
    return codes


Pair = tuple[Array, Array]


def _masks(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw float64 a (M, K) and b (K, N): in each row of a, two large terms at random indices of K cancel.

    promise: the arithmetic of a kernel, for the ranges of its operands. shape: (M, N, K).
    """
    pairs = [tuple(rng.choice(shape[2], 2, replace=False)) if shape[2] > 1 else (0, 0) for _ in range(shape[0])]
    return _large_pairs(rng, promise, shape, pairs)


def _seams(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw float64 a (M, K) and b (K, N): in each row of a, two large terms before and after a boundary cancel.

    The boundaries are those of partial sums of `promise`, a kernel's arithmetic. shape: (M, N, K).
    """
    k = shape[2]
    seams = sorted({s for s in boundaries(promise, k) if 0 < s < k}) or [k // 2]
    pairs = []
    for row in range(shape[0]):
        seam = int(rng.choice(seams))
        first = max(seam - 1 - int(rng.integers(0, 3)) * (row % 2), 0)
        pairs.append((first, min(seam + int(rng.integers(0, 3)), k - 1)))
    return _large_pairs(rng, promise, shape, pairs)


def boundaries(promise: Promise, k: int) -> list[int]:
    """Return the sorted indices of K at which a partial sum may begin, in a sum of k terms.

    They are the boundaries of the schedule of `promise` (the arithmetic of a kernel); the powers of two from 8 to 2048;
    and 3 times the powers of two from 16 to 512. Some may exceed k.
    """
    starts = {1 << i for i in range(3, 12)} | {3 << i for i in range(4, 10)}
    if isinstance(promise.adding, Adding) and promise.chain is not None:
        plan = plan_of(promise.adding.schedule or FLAT, promise.chain, k)
        starts |= {run.start for part in plan.slices for run in part.runs}
        starts |= {part.runs[0].start + block.start for part in plan.slices for block in part.blocks}
    return sorted(starts)


def _large_pairs(rng: np.random.Generator, promise: Promise, shape: Shape, pairs: list[Any]) -> Pair:
    """Draw float64 a (M, K) and b (K, N): in each row of a, two large terms at given indices of K cancel.

    pairs: for each row of a, these two indices; if they are equal, the row has one large term. promise: the arithmetic
    of a kernel, for the ranges of its operands. shape: (M, N, K).
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
    """Draw float64 a (M, K) and b (K, N) whose partial sums differ in exponent, so that adding them rounds.

    promise: the arithmetic of a kernel, for the length of its partial sums. shape: (M, N, K).
    """
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
    """Draw N(0, 1) for a (M, K) and b (K, N), then set all but the last terms of each row of a to 0.

    Row i keeps 1 + i * max(K // 24, 1) terms. shape: (M, N, K). promise: not read.
    """
    m, n, k = shape
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    kept = np.minimum(1 + np.arange(m) * max(k // 24, 1), k)
    a[np.arange(k)[None, :] < (k - kept)[:, None]] = 0.0
    return a, b


def _infinite(rng: np.random.Generator, promise: Promise, shape: Shape) -> Pair:
    """Draw N(0, 1) for a (M, K) and b (K, N), then set an element of each row of a to Inf, NaN or the largest value.

    Rows of b that are multiplied by these elements get values 1, -1, 0 and tiny ones. promise: the arithmetic of a
    kernel, for its formats. shape: (M, N, K).
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
    """Draw float64 a (M, K) and b (K, N) whose products are near the smallest value of the promised result format.

    Only the first i + 1 elements of row i of a are not zero. shape: (M, N, K).
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
    """Draw integers, as float64 a (M, K) and b (K, N), whose sums are often ties of the promised result format.

    Sums are around 2**(precision of that format). In half of the columns, a last term of +-1/64 moves them off ties.
    shape: (M, N, K).
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
