"""Comparisons of fp.gpu's functions with the same functions on the CPU: scaling, sums, conversions, and others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fpsim.core.elementary.float32 import FUNCTIONS
from fpsim.formats.integer_format import INT8, UINT8
from fpsim.formats.named import BF16, E2M1, E4M3, E5M2, FP16, FP32, NAMED
from fpsim.gpu.experiments.checks import Check, codes_of, twin_row
from fpsim.gpu.lab.judge import as_words
from fpsim.gpu.lab.lab import Lab, titled
from fpsim.gpu.lab.model import Words
from fpsim.lazy import public
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.catalogue import float_units as catalogue
from fpsim.matrix_units.catalogue import integer_units
from fpsim.norms.lane_sum import LaneSum
from fpsim.scaling.recipes import ANY_ELEMENT, ROWS
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential

# Element formats of recipes that are not for E4M3.
ELEMENTS: dict[str, Any] = {"NVFP4": E2M1, "TE_NVFP4": E2M1, "TORCHAO_NVFP4": E2M1, "ROW": INT8}
CASTS: tuple[dict[str, Any], ...] = (
    {}, {"rounding": "stochastic", "seed": 2**40 + 3}, {"rounding": "up", "subnormals": "flush"},
)  # fmt: skip
ACCUMULATORS: tuple[Accumulator, ...] = (
    Sequential(E4M3), Sequential(FP16, rounding="up"), Sequential(BF16, rounding="stochastic", seed=2**40 + 7),
    Sequential(FP32), FusedMultiplyAdd(FP16, rounding="down"), FusedMultiplyAdd(FP32), Pairwise(FP16),
    Pairwise(E5M2, rounding="stochastic", seed=4), Chunked(BF16, chunk=5, outer=FP32), Exact(E4M3), Exact(FP32),
)  # fmt: skip


def scaling(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of fp.gpu's codes, scales and values with the CPU's, for every scaling and for a zero point.

    `encode_scaled` rounds to nearest even, stochastically, and up with subnormals flushed; if lab.small, only to
    nearest even. `quantize_scaled` rounds only to nearest even. lab: settings of the validation. Its seed selects the
    scaling that comes first, so that short validations with different seeds cover all of them.
    """
    cases = [(name, row, ELEMENTS.get(name, E4M3)) for name, row in ANY_ELEMENT.items()]
    cases.append(("TILE_1X128 with a zero point", ROWS["TILE_1X128"].replace(symmetric=False), UINT8))
    shapes = ((3, 35),) if lab.small else ((131, 200), (256, 1024))
    for name, row, fmt in [*cases[lab.seed % len(cases) :], *cases[: lab.seed % len(cases)]]:
        for shape in shapes:
            x = _magnitudes(lab, shape)
            label = f"{shape[0]} x {shape[1]} float32"
            for options in CASTS[: 1 if lab.small else None]:
                yield Check("scaling", titled(f"fp.gpu.encode_scaled {fmt} {name}", options), label,
                            partial(twin_row, lab, "encode_scaled", (x,), fmt=fmt, scaling=row, **options))  # fmt: skip
            yield Check("scaling", f"fp.gpu.quantize_scaled {fmt} {name}", label,
                        partial(twin_row, lab, "quantize_scaled", (x,), fmt=fmt, scaling=row))  # fmt: skip


def sums(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of fp.gpu's sums by accumulators, and of a step of each matrix unit, with the CPU's.

    lab: the settings of the validation.
    """
    for accumulator in ACCUMULATORS:
        for terms in (13, 100 if lab.small else 1000):
            x, y = _near_one(lab, (60, terms), 1), _near_one(lab, (60, terms), 2)
            added = partial(twin_row, lab, accumulate=accumulator)
            label = f"60 rows of {terms} float16"
            yield Check("sums", f"fp.gpu.sum {accumulator}", label, partial(added, name="sum", operands=(x,), axis=1))
            yield Check("sums", f"fp.gpu.dot {accumulator}", label, partial(added, name="dot", operands=(x, y)))
            product = partial(added, name="matmul", operands=(x, y.T.copy()))
            yield Check("sums", f"fp.gpu.matmul {accumulator}", label, product)
    mine = dataclasses.replace(find_unit("hopper_e4m3_f32"), name="mine", terms=24, fraction_bits=9, result_bits=11)
    rng = np.random.default_rng([lab.seed, 5])
    for unit in [*catalogue(), mine]:
        if unit.scale is not None:
            continue  # block scales are further operands
        rows = 64 if lab.small else 4096
        operands = [rng.integers(0, 1 << fmt.bits, (rows, unit.terms), np.uint64).astype(fmt.storage)
                    for fmt in (unit.a.carrier, unit.b.carrier)]  # fmt: skip
        start = rng.standard_normal(rows) * 2.0 ** rng.integers(-12, 12, rows)
        c = as_words(public().encode(start, unit.d.carrier))
        yield Check("sums", f"fp.gpu.dot_add {unit.name}", f"{rows} steps of random codes",
                    partial(twin_row, lab, "dot_add", (*operands, c), unit=unit))  # fmt: skip
    for integers in integer_units():
        rows = 64 if lab.small else 4096
        numbers = [
            rng.integers(x.lowest, x.highest, shape, x.dtype, endpoint=True)
            for x, shape in ((integers.a, (rows, 40)), (integers.b, (rows, 40)), (integers.d, rows))
        ]
        yield Check("sums", f"fp.gpu.dot_add {integers.name}", f"{rows} rows of 40 random integers",
                    partial(twin_row, lab, "dot_add", tuple(numbers), unit=integers))  # fmt: skip


def functions(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of fp.gpu's decode, classify, equal, less and conversions with the CPU's.

    lab: the settings of the validation.
    """
    for fmt in NAMED.values():
        if fmt.bits <= 16:
            every = (np.arange(1 << fmt.bits).astype(fmt.storage),)
            for name in ("decode", "classify", "absolute"):
                yield Check("functions", f"fp.gpu.{name} {fmt}", "all codes",
                            partial(twin_row, lab, name, every, fmt=fmt))  # fmt: skip
    for fmt in (E4M3, E2M1, FP16, BF16, FP32):
        label, pair = codes_of(lab, fmt, 2)
        for name in ("equal", "less", "less_equal", "minimum_number", "maximum_number"):
            yield Check("functions", f"fp.gpu.{name} {fmt}", label, partial(twin_row, lab, name, pair, fmt=fmt))
        label, single = codes_of(lab, fmt, 1)
        for target in (E5M2, E2M1, BF16):
            for rounding in ("nearest_even", "toward_zero"):
                run = partial(twin_row, lab, "convert", single, fmt=fmt, to=target, rounding=rounding)
                yield Check("functions", f"fp.gpu.convert {fmt} to {target} {rounding}", label, run)
        for dtype in (np.int8, np.int64):
            yield Check("functions", f"fp.gpu.to_int {fmt} {dtype.__name__}", label,
                        partial(twin_row, lab, "to_int", single, fmt=fmt, dtype=dtype))  # fmt: skip
        n = np.random.default_rng([lab.seed, 6]).integers(-(1 << 40), 1 << 40, 4096) >> np.arange(4096) % 41
        yield Check(
            "functions", f"fp.gpu.from_int {fmt}", "4096 integers", partial(twin_row, lab, "from_int", (n,), fmt=fmt)
        )


# Keywords of softmax and of norms: sums, formats, axes and roundings.
NORMS: tuple[dict[str, Any], ...] = (
    {}, {"axis": 0, "accumulate": LaneSum(8), "rounding": "stochastic", "seed": 2**40 + 3},
    {"intermediate": BF16, "accumulate": Sequential(BF16)}, {"accumulate": Exact(FP32), "out_fmt": E4M3},
    {"axis": 0, "accumulate": Pairwise(FP16), "intermediate": FP16, "rounding": "up"},
)  # fmt: skip


def elementary(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of fp.gpu's softmax, norms, exp, log and other elementary functions with the CPU's.

    lab: the settings of the validation.
    """
    shape = (6, 40) if lab.small else (300, 2000)
    for fmt in (FP32, BF16):
        x = as_words(public().encode(_magnitudes(lab, shape), fmt))
        for name, count in {"softmax": 0, "log_softmax": 0, "rms_norm": 1, "layer_norm": 2}.items():
            for options in NORMS[: 2 if lab.small else None]:
                length = shape[options.get("axis", -1)]
                more = [as_words(public().encode(_near_one(lab, (length,), 9 + i), fmt)) for i in range(count)]
                yield Check("elementary", titled(f"fp.gpu.{name} {fmt}", options), f"{shape[0]} x {shape[1]} numbers",
                            partial(twin_row, lab, name, (x, *more), fmt=fmt, **options))  # fmt: skip
    step = 1 << (20 if lab.small else 6)
    first = int(np.random.default_rng([lab.seed, 64]).integers(step))
    every: tuple[Words, ...] = (np.arange(first, 1 << 32, step, dtype=np.uint64).astype(np.uint32),)
    for name in FUNCTIONS:
        yield Check("elementary", f"fp.gpu.{name} FP32", f"every {step}th float32, from code {first}",
                    partial(twin_row, lab, name, every, fmt=FP32, flags=True))  # fmt: skip
    for fmt in (E4M3,) if lab.small else (E4M3, BF16, FP16):
        for name in FUNCTIONS:
            label, every = codes_of(lab, fmt, 1)
            for options in CASTS[: 1 if lab.small else None]:
                yield Check("elementary", titled(f"fp.gpu.{name} {fmt}", options), label,
                            partial(twin_row, lab, name, every, fmt=fmt, flags=True, **options))  # fmt: skip


STACKS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 33, 65), (3, 65, 17)), ((2, 1, 16, 64), (5, 64, 24)), ((4, 40, 96), (96, 40)), ((48, 200), (7, 200, 1)),
)  # fmt: skip


def stacks(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of fp.gpu's stacks of matrix products, and products of integers, with the CPU's.

    lab: the settings of the validation.
    """
    floats: list[tuple[Any, dict[str, Any]]] = [
        (find_unit(name), {}) for name in ("hopper_e4m3_f32", "hopper_bf16_f32", "x86_avx512_bf16_f32")
    ]
    floats += [(find_unit("hopper_e4m3_f32"), {"promote": 32, "out_fmt": "bf16"})]
    for number, (left, right) in enumerate(STACKS[:1] if lab.small else STACKS):
        rng = np.random.default_rng([lab.seed, 7, number])
        words = f"{left} @ {right}"
        for unit, options in floats:
            pair = [
                as_words(public().encode(rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape), fmt.carrier))
                for shape, fmt in ((left, unit.a), (right, unit.b))
            ]
            yield Check("stacks", titled(f"fp.gpu.matmul {unit.name}", options), words,
                        partial(twin_row, lab, "matmul", tuple(pair), accumulate=unit, **options))  # fmt: skip
        x, y = (_near_one(lab, shape, number) for shape in (left, right))
        for accumulator in (FusedMultiplyAdd(FP32), Sequential(BF16)):
            yield Check("stacks", f"fp.gpu.matmul {accumulator}", words,
                        partial(twin_row, lab, "matmul", (x, y), accumulate=accumulator))  # fmt: skip
    rng = np.random.default_rng([lab.seed, 8])
    for integers in integer_units():
        m, n, k = (8, 8, 40) if lab.small else (50, 70, 333)
        numbers = [
            rng.integers(x.lowest, x.highest, shape, x.dtype, endpoint=True)
            for x, shape in ((integers.a, (m, k)), (integers.b, (k, n)))
        ]
        yield Check("stacks", f"fp.gpu.matmul {integers.name}", f"{m} x {n} x {k} random integers",
                    partial(twin_row, lab, "matmul", tuple(numbers), accumulate=integers))  # fmt: skip


def _magnitudes(lab: Lab, shape: tuple[int, int]) -> Any:
    """Return random float32 numbers of many magnitudes, with some zeros, NaN, Inf and subnormals.

    lab: settings of the validation, whose seed is used. shape: shape of the array.
    """
    rng = np.random.default_rng([lab.seed, *shape])
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, (shape[0], 1))).astype(np.float32)
    flat = x.reshape(-1)
    flat[: flat.size // 9] = 0
    places = rng.choice(flat.size, 7, replace=False)
    flat[places] = np.array([np.nan, -np.inf, np.inf, -0.0, 2.0**-149, 3e38, 1e-42], np.float32)
    return x


def _near_one(lab: Lab, shape: tuple[int, ...], salt: int) -> Any:
    """Return normally distributed float16 numbers of mean 0 and standard deviation 1/4, with the given shape.

    They are so small that their sums stay finite in narrow formats. lab.seed and `salt` determine them.
    """
    return (np.random.default_rng([lab.seed, *shape, salt]).standard_normal(shape) / 4).astype(np.float16)


TWINS: dict[str, Callable[[Lab], Iterator[Check]]] = {
    "scaling": scaling, "sums": sums, "functions": functions, "elementary": elementary, "stacks": stacks,
}  # fmt: skip
