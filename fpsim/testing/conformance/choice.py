"""Standard sets of test vectors and their inputs, which depend on the sets' names alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import distinct
from fpsim.casts.cast import encode
from fpsim.formats.named import BF16, E2M1, E4M3, E5M2, FP16, FP32, FP64, NAMED, Format
from fpsim.formats.policies import OVERFLOWS, Outcome, overflow_outcome
from fpsim.formats.rounding import NAMES
from fpsim.matrix_units.catalogue import float_units as units
from fpsim.matrix_units.catalogue import integer_units
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling import recipes
from fpsim.testing.boundary_points import points
from fpsim.testing.conformance.kinds import COUNTS, OPERATIONS, computed, matrix_fields, unit_fields
from fpsim.testing.conformance.vectors import Field, Vectors, Words, rows

ROUNDINGS = tuple(name for name in NAMES if name != "stochastic")
CASTS, PAIRS, DOTS, PRODUCTS, TILES = 64, 32, 3, 2, 12  # cases of a set
ARITHMETIC = (E4M3, E5M2, E2M1, FP16, BF16)
PROMOTED = (("hopper_e4m3_f32", 128), ("hopper_e5m2_f32", 128), ("hopper_bf16_f32", 64), ("hopper_f16_f32", 64))
SCALED = (
    (E4M3, "MX"), (E4M3, "MX_CEIL"), (E4M3, "MX_EVEN"), (E4M3, "MX_RCEIL"), (E4M3, "MX_NEAREST"), (E5M2, "MX"),
    (E2M1, "MX"), (E4M3, "TILE_1X128"), (E5M2, "TILE_1X128"), (E4M3, "DEEPGEMM_1X128"),
)  # fmt: skip
TWO_LEVELS = ("NVFP4", "TE_NVFP4", "TORCHAO_NVFP4")
TILE, ROWS_OF_TILES, MATRICES = 32, 2, 6


def chosen() -> list[Vectors]:
    """Return every standard set of test vectors, with inputs, and with outputs computed by fpsim."""
    empty = [*_casts(), *_decodings(), *_arithmetic(), *_dots(), *_products(), *_tiles(), *_stochastic(), *_matrices()]
    return [vectors._replace(outputs=computed(vectors)) for vectors in empty]


def _set(kind: str, words: dict[str, Any], takes: tuple[Field, ...], gives: tuple[Field, ...], inputs: Any) -> Vectors:
    """Return a set of test vectors of the operation `kind`, such as "cast", without outputs.

    words: keywords, such as {"format": "E4M3"}. takes, gives: fields of a case's inputs and outputs. inputs: bit
    patterns of the inputs, a row for each case.
    """
    texts = {word: str(value) for word, value in words.items()}
    return Vectors(kind, texts, takes, gives, np.asarray(inputs, np.uint64), rows([], gives))


def _rng(*key: object) -> np.random.Generator:
    """Return a generator of random numbers that is seeded by the values `key` alone."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


# ---- casts


def _casts() -> Iterator[Vectors]:
    """Yield sets of test vectors for casts, without outputs, for every named format.

    Each format has a set for every pair of a deterministic rounding and an overflow policy, and one with flushed
    subnormals. Of policies that cast the format alike, only the first is used.
    """
    for fmt in NAMED.values():
        source = FP32 if FP32.holds(fmt) and fmt.mantissa_bits < FP32.mantissa_bits else FP64
        seen, policies = [], []
        for overflow in OVERFLOWS:
            outcome = _told(overflow_outcome(overflow, fmt), fmt)
            if outcome in seen:
                continue
            seen.append(outcome)
            policies += [(rounding, overflow, "keep", f"{rounding} {overflow}") for rounding in ROUNDINGS]
        policies.append(("nearest_even", "nonfinite", "flush", "flush"))
        for rounding, overflow, subnormals, case in policies:
            words = {"format": fmt.name, "from": source.name, "rounding": rounding, "overflow": overflow}
            inputs = _cast_inputs(fmt, source, case)
            yield _set("cast", words | {"subnormals": subnormals}, (Field(source, 1),), (Field(fmt, 1),), inputs)


def _decodings() -> Iterator[Vectors]:
    """Yield, for every named format of up to 8 bits, the set of test vectors that decodes all its codes to float32.

    Its outputs are not yet computed.
    """
    for fmt in NAMED.values():
        if fmt.bits <= 8:
            codes = np.arange(1 << fmt.bits, dtype=np.uint64)[:, None]
            yield _set("decode", {"format": fmt.name}, (Field(fmt, 1),), (Field(FP32, 1),), codes)


def _told(outcome: Outcome, fmt: Format) -> tuple[str, ...]:
    """Return the names of the results of an overflow policy in `fmt`; policies with equal tuples cast equally.

    The four results are those of finite values that are too large, of Inf, of negative values in an unsigned format
    ("" in signed formats), and of NaN in a format without NaN ("" in formats with NaN). outcome: the policy's results.
    """
    below, nan = "" if fmt.signed else outcome.below, "" if fmt.has_nan else outcome.nan
    return outcome.overflow, outcome.infinite, below, nan


def _stochastic() -> Iterator[Vectors]:
    """Yield sets of test vectors, without outputs, for stochastic casts from float32 to the formats of ARITHMETIC.

    The inputs of a case are a float32 pattern and the 32-bit random number of the rounding.
    """
    for fmt in ARITHMETIC:
        inputs = _cast_inputs(fmt, FP32, "stochastic")
        rng = _rng(fmt.name, "stochastic words")
        drawn = rng.integers(0, 1 << 32, len(inputs), np.uint64)
        drawn[::4] = rng.choice(np.array([0, 1, 1 << 31, (1 << 32) - 1], np.uint64), drawn[::4].size)
        words = {"format": fmt.name, "from": "FP32", "overflow": "nonfinite", "subnormals": "keep"}
        takes = Field(FP32, 1), Field(FP32, 1)
        yield _set("stochastic_cast", words, takes, (Field(fmt, 1),), np.column_stack([inputs[:, 0], drawn]))


def _cast_inputs(fmt: Format, source: Format, case: str) -> Words:
    """Return inputs of casts from `source` to `fmt`, as bit patterns, uint64 (cases, 1).

    They are the ends of the range, special values, and a random choice of `fpsim.testing.points(fmt)`. case: text that
    seeds the choice.
    """
    patterns, picked = _patterns(fmt, source)
    others = patterns[_rng(fmt.name, case).integers(0, patterns.size, CASTS - picked.size)]
    return distinct(np.concatenate([picked, others])).astype(np.uint64)[:, None]


@lru_cache(maxsize=2)
def _patterns(fmt: Format, source: Format) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return (all of `fpsim.testing.points(fmt)`, inputs that every set of casts contains), as patterns of `source`.

    Points are inputs at which the result of a cast can change. The inputs in every set are zeros, the ends of the range
    of `fmt`, Inf, a quiet NaN and two signalling ones.
    """
    x = points(fmt, np.float32 if source == FP32 else np.float64)
    tie = fmt.max + fmt.ulp(fmt.max) / 2
    with np.errstate(all="ignore"):
        size = np.abs(x.astype(np.float64))
        ends = np.isin(size, [fmt.max, tie, fmt.smallest_normal, fmt.smallest_subnormal / 2, 0.0, np.inf])
    patterns = x.view(source.storage)
    infinity = source.infinity_code
    assert infinity is not None
    signalling = np.array([infinity + 1, infinity + 1 | source.sign_bit], source.storage)
    return patterns, np.concatenate([patterns[ends], patterns[np.isnan(size)][:1], signalling])


# ---- arithmetic


def _arithmetic() -> Iterator[Vectors]:
    """Yield sets of test vectors for operations on codes, such as "add", without outputs.

    The formats are E4M3, E5M2, E2M1, FP16 and BF16; the roundings are "nearest_even" and "toward_zero".
    """
    for operation in OPERATIONS:
        for fmt in ARITHMETIC:
            for rounding in ("nearest_even", "toward_zero"):
                words = {"format": fmt.name, "rounding": rounding, "overflow": "nonfinite", "subnormals": "keep"}
                count = COUNTS.get(operation, 2)
                rng = _rng(operation, fmt.name, rounding)
                operands = [_hard_codes(rng, fmt, PAIRS) for _ in range(count)]
                if count == 1 and fmt.bits <= 8:
                    operands = [np.arange(1 << fmt.bits)]
                fields = (Field(fmt, 1),) * count
                yield _set(operation, words, fields, (Field(fmt, 1),), np.stack(operands, axis=1))


def _hard_codes(rng: np.random.Generator, fmt: Format, count: int) -> npt.NDArray[np.int64]:
    """Return `count` random codes of a format, a third of them at the ends of its range or special."""
    normal = 1 << fmt.mantissa_bits
    ends = [0, 1, normal - 1, normal, fmt.max_code, fmt.max_code - 1, fmt.top_magnitude]
    signs = rng.integers(0, 2, count) * fmt.sign_bit
    drawn = rng.integers(0, 1 << fmt.bits, count)
    return np.where(rng.integers(0, 3, count) == 0, rng.choice(ends, count) | signs, drawn)


# ---- units


def _dots() -> Iterator[Vectors]:
    """Yield a set of test vectors, without outputs, for each matrix instruction that fpsim emulates.

    Instructions on floats and on integers are included.
    """
    for unit in units():
        k = max(unit.terms, unit.block)
        inputs = _operands(unit, k, DOTS, "dot_add")
        yield _set("dot_add", {"unit": unit.name, "terms": k}, *unit_fields(unit, k), inputs)
    for integers in integer_units():
        k = 2 * integers.terms
        words = {"unit": integers.name, "terms": k}
        yield _set("dot_add", words, *unit_fields(integers, k), _integers(integers, k))


def _integers(unit: IntegerUnit, k: int) -> Words:
    """Return three test cases of an integer unit with `k` terms, one per row, as codes (uint64).

    A row has the codes of a, of b, and of the accumulator's start. The first case is random; in the others the sum
    leaves the accumulator's range after half of the terms.
    """
    rng = _rng(unit.name, "dot_add")
    a, b, d = unit.a, unit.b, unit.d
    low = (a.lowest, b.highest) if a.signed else (a.highest, b.lowest)
    rows_of_codes = []
    for case in range(DOTS):
        x, y = (rng.integers(of.lowest, of.highest, k, endpoint=True) for of in (a, b))
        start = rng.integers(d.lowest, d.highest, 1, endpoint=True)
        if case:
            below = case == 2 and d.signed
            x[: k // 2], y[: k // 2] = low if below else (a.highest, b.highest)
            start[0] = d.lowest + 9 if below else d.highest - 9
        row = [codes & ((1 << of.bits) - 1) for codes, of in ((x, a), (y, b), (start, d))]
        rows_of_codes.append(np.concatenate(row).astype(np.uint64))
    return np.stack(rows_of_codes)


def _products() -> Iterator[Vectors]:
    """Yield sets of test vectors, without outputs, for products whose partial sums are added to a float32 total.

    There is a set for each row of PROMOTED, a matrix unit and the number of terms of a partial sum. K is twice that
    number plus the number of terms of one matrix instruction.
    """
    for name, promote in PROMOTED:
        (unit,) = (candidate for candidate in units() if candidate.name == name)
        k = 2 * promote + unit.terms
        inputs = _operands(unit, k, PRODUCTS, "matmul")[:, : 2 * k]
        takes = unit_fields(unit, k)[0][:2]
        words = {"unit": name, "terms": k, "promote": promote}
        yield _set("matmul", words, takes, (Field(FP32, 1),), inputs)


def _operands(unit: MatrixUnit, k: int, cases: int, use: str) -> Words:
    """Return test cases of a matrix unit, one per row, as codes (uint64).

    A row has the codes of a, of b, of the accumulator's start, and of the scales if the unit has scales. The kinds of
    cases alternate: magnitudes from 1 to 2; magnitudes from 2**-6 to 2**7, whose terms cancel; magnitudes from 1/4 to 8
    and a start of some thousands.

    Args:
      unit: the matrix unit.
      k: the number of terms.
      cases: the number of rows.
      use: the purpose of the operands, such as "matmul"; with the unit's name it seeds the draws.
    """
    rng = _rng(unit.name, use)
    rows_of_codes = []
    for case in range(cases):
        spread = (0, 6, 2)[case % 3]
        a, b = (
            rng.choice([-1.0, 1.0], k) * rng.uniform(1, 2, k) * 2.0 ** rng.integers(-spread, spread + 1, k)
            for _ in range(2)
        )
        if case % 3 == 1:  # what is large cancels, and what is small is left
            half = k // 2
            a[half : 2 * half], b[half : 2 * half] = -a[:half], b[:half]
        start = [rng.standard_normal(), 0.0, 2.0**10 * rng.standard_normal()][case % 3]
        row = [_codes(a, unit.a), _codes(b, unit.b), encode(np.array([start]), unit.d.carrier, overflow="saturate")]
        if unit.scale_format is not None:
            for _ in range(2):
                powers = 2.0 ** rng.integers(-3, 4, k // unit.block)
                row.append(encode(powers, unit.scale_format, overflow="saturate"))
        rows_of_codes.append(np.concatenate([part.astype(np.uint64) for part in row]))
    return np.stack(rows_of_codes)


def _codes(x: npt.NDArray[np.float64], element: Any) -> npt.NDArray[Any]:
    """Return float64 values as codes (uint64) of an operand's element type, saturated.

    element: a unit's `Element`. Codes are shifted to their position in its storage format `element.carrier`: TF32 to
    the top bits of a float32.
    """
    values = encode(x, element.fmt, overflow="saturate")
    shift = element.carrier.bits - element.fmt.bits  # TF32's codes are the upper bits of float32's
    return values.astype(np.uint64) << np.uint64(shift)


# ---- scaled tiles


def _tiles() -> Iterator[Vectors]:
    """Yield sets of test vectors, without outputs: tiles of 32 float32 values that a scaling recipe encodes.

    Each case is one tile, which gets one scale. SCALED lists the sets' formats and recipes, such as (E4M3, "MX").
    """
    for fmt, scaling in SCALED:
        rng = _rng(fmt.name, scaling)
        x = rng.standard_normal((TILES, TILE)).astype(np.float32)
        x *= np.float32(2.0) ** rng.integers(-20, 20, (TILES, 1)).astype(np.float32)
        x[0], x[1], x[2] = 0.0, 1.0, -0.0
        x[3, 0], x[4, -1] = 2.0**60, 448.0 * 2.0**-130
        x[5] = np.clip(x[5] / np.abs(x[5]).max(), -0.99, 0.99)
        x[5, 7] = 1.0  # amax is a power of two
        x[6, 3], x[7, 5], x[8] = np.inf, np.nan, np.inf
        gives = Field(fmt, TILE), Field(recipes.ROWS[scaling].scale_format, 1)
        words = {"format": fmt.name, "scaling": scaling, "elements": TILE}
        yield _set("scaled", words, (Field(FP32, TILE),), gives, x.view(np.uint32))


def _matrices() -> Iterator[Vectors]:
    """Yield sets of test vectors, without outputs: float32 matrices (2, 32) that NVFP4 recipes encode to E2M1.

    Each case is one matrix, which gets one scale per tile and one for the whole array. TWO_LEVELS lists the recipes.
    """
    size = ROWS_OF_TILES * TILE
    for scaling in TWO_LEVELS:
        rng = _rng(scaling, "matrix")
        x = rng.standard_normal((MATRICES, size)) * 2.0 ** rng.integers(-8, 8, (MATRICES, size // 16)).repeat(16, 1)
        x[0], x[1, :16] = 0, 0
        x[2] *= 2.0**-100
        x[3, 5], x[4, 20] = np.nan, np.inf
        takes, gives = matrix_fields(E2M1, recipes.ROWS[scaling], ROWS_OF_TILES, TILE)
        words = {"format": "E2M1", "scaling": scaling, "rows": ROWS_OF_TILES, "elements": TILE}
        yield _set("scaled_matrix", words, takes, gives, x.astype(np.float32).view(np.uint32))
