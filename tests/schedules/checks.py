"""Cases of library schedules, each with its composition written out, and how fp.matmul is compared with it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules import Schedule
from fpsim.testing import assert_bits_equal
from tests.oracles import cublas
from tests.oracles import schedules as written
from tests.oracles.schedules import Array, Job, Oracle
from tests.oracles.units.rows import Codes, Rows, Sides, cancelling, overflowing, rows_of, subnormal, wide, zeros
from tests.products.checks import results

f32 = np.float32

Kind = Callable[[Sides], Rows]

HOPPER, HOPPER_BF16, HOPPER_FP8 = "hopper_f16_f32", "hopper_bf16_f32", "hopper_e4m3_f32"
BLACKWELL, BLACKWELL_FP8, ADA = "blackwell_f16_f32", "blackwell_e4m3_f32", "ada_e4m3_f32"
MIXED, MIXED_ADA = "hopper_e5m2xe4m3_f32", "ada_e4m3xe5m2_f32"

HALVES = (HOPPER, HOPPER_BF16)
EIGHTS = (HOPPER_FP8, MIXED)
ANY = (HOPPER, HOPPER_FP8)


class Case(NamedTuple):
    """A schedule, the same written out, and units that it takes."""

    schedule: Schedule
    oracle: Oracle
    units: tuple[str, ...] = ANY

    @property
    def name(self) -> str:
        """For the report."""
        return str(self.schedule)


def spread(sides: Sides) -> Rows:
    """Runs of terms of very different sizes, so that every rounding of a partial sum shows."""
    draw, k = sides.a.generator.integers, sides.a.shape[-1]
    size: Any = draw(-4, 5, -(-k // 150)).repeat(150)[:k] + draw(-2, 3, -(-k // 24)).repeat(24)[:k]
    return rows_of(sides, sides.a.near(size, 3), sides.b.near(size, 3), sides.c.near(0, 8))


def sprinkled(sides: Sides) -> Rows:
    """Values of many binades with a special one here and there."""

    def codes(side: Codes) -> Array:
        return side.mix(side.near(-1, 6), side.special(), 0.3 / max(side.shape[-1], 1))

    return rows_of(sides, codes(sides.a), codes(sides.b), sides.c.near(0, 4))


KINDS: tuple[Kind, ...] = (spread, wide, cancelling, subnormal, zeros, overflowing, sprinkled)

s = fp.schedules
BASIC = [
    Case(s.FLAT, written.flat),
    Case(s.cutlass_2xacc(), written.cutlass_2xacc),
    Case(s.cutlass_2xacc(64), partial(written.cutlass_2xacc, interval=64)),
    Case(s.cutlass_2xacc(256, tile=128), partial(written.cutlass_2xacc, interval=256)),
    Case(s.triton(), written.triton),
    Case(s.triton(128, 32), partial(written.triton, block_k=128, limit=32), (*EIGHTS, HOPPER, BLACKWELL_FP8)),
    Case(s.triton(128, 33), partial(written.triton, block_k=128, limit=33), EIGHTS),
    Case(s.triton(128, 96), partial(written.triton, block_k=128, limit=96), EIGHTS),
    Case(s.triton(256, 100), partial(written.triton, block_k=256, limit=100), EIGHTS),
    Case(s.triton(64, 64), partial(written.triton, block_k=64, limit=64), EIGHTS),
]
ROWWISE = [
    Case(s.torch_rowwise(), written.torch_rowwise, EIGHTS),
    Case(s.torch_rowwise(fast_accum=True), partial(written.torch_rowwise, fast_accum=True), EIGHTS),
]
BLOCKWISE = [
    *[Case(s.cutlass_blockwise(order), partial(written.cutlass_blockwise, order=order), (HOPPER_FP8,))
      for order in ("product", "a_first", "b_first")],
    Case(s.cutlass_blockwise("a_first", 64), partial(written.cutlass_blockwise, interval=64), (HOPPER_FP8,)),
    Case(s.deepgemm(), written.deepgemm, EIGHTS),
    Case(s.deepgemm("1d1d"), written.deepgemm, (HOPPER_FP8,)),
    Case(s.deepgemm(fused=False), partial(written.deepgemm, fused=False), (HOPPER_FP8,)),
    *[Case(s.cutlass_blockwise(order, fused=False), partial(written.cutlass_blockwise, order=order, fused=False),
           (HOPPER_FP8,)) for order in ("a_first", "b_first")],
]  # fmt: skip
SPLITS = (1, 2, 3, 4, 5, 9, 40)
NVJET = [
    *[Case(s.cublas("sm_90", split_k=n), partial(cublas.nvjet, split_k=n), (*HALVES, *EIGHTS)) for n in SPLITS],
    *[Case(s.cublas("sm_90", split_k=n, tail_loss=False), partial(cublas.nvjet, split_k=n, tail_loss=False), ANY)
      for n in (2, 5, 9)],
    *[Case(s.cublas("sm_90", split_k=n, fast_accum=True), partial(cublas.nvjet, split_k=n, fast_accum=True), EIGHTS)
      for n in (1, 3)],
    *[Case(s.cublas("sm_100", split_k=n), partial(cublas.nvjet, split_k=n), (BLACKWELL, BLACKWELL_FP8))
      for n in (1, 2, 5)],
]  # fmt: skip
CUTLASS = [
    *[Case(s.cublas("sm_90", family="cutlass", split_k=n, merge=merge, block_k=64),
           partial(cublas.cutlass, split_k=n, merge=merge, block_k=64), HALVES)
      for n in (1, 2, 3, 5, 9) for merge in (0, 2, 4)],
    *[Case(s.cublas("sm_90", family=21, stages=stages, split_k=3, merge=1),
           partial(cublas.cutlass, split_k=3, merge=1, block_k=block_k, step=step), (HOPPER,))
      for stages, (block_k, step) in {0: (32, 8), 7: (32, 16), 12: (32, 16), 13: (64, 16), 18: (64, 16), 19: (128, 16),
                                      20: (128, 16), 25: (32, 16)}.items()],
    Case(s.cublas("sm_90", family="cutlass", stages=0), partial(cublas.cutlass, step=8), HALVES),
    Case(s.cublas("sm_90", family="cutlass", block_k=64, step=8), partial(cublas.cutlass, block_k=64, step=8)),
    Case(s.cublas("sm_90", family="cutlass", block_k=128), partial(cublas.cutlass, block_k=128), HALVES),
]  # fmt: skip
XMMA = [
    Case(s.cublas("sm_89", split_k=n, merge=merge, fast_accum=fast),
         partial(cublas.xmma, split_k=n, merge=merge, fast_accum=fast), (ADA, MIXED_ADA))
    for n, merge, fast in [*itertools.product((1, 2, 3, 4, 5, 9), ("serial", "pairwise"), (False,)),
                           (3, "serial", True), (4, "pairwise", True)]
]  # fmt: skip
BLOCK_SCALED = [
    *[Case(s.cublas("sm_90", family="block_scaled", scale_order=order),
           partial(written.block_scaled, order=order), (HOPPER_FP8,)) for order in ("a_first", "b_first")],
]  # fmt: skip
# CUSTOM_OPTION of gemv on sm_90 -> terms of a run, lanes, tiles of a chunk, butterfly
ROWS = {0: (1, 1, 512, False), 7: (1, 1, 256, False), 84: (1, 1, 0, False), 10: (4, 32, 0, True),
        11: (1, 16, 32, False), 12: (1, 16, 16, False), 49: (1, 2, 0, True), 69: (1, 4, 0, True), 43: (1, 8, 0, True),
        101: (1, 16, 0, True), 93: (1, 32, 0, True), 48: (-64, 2, 0, True), 110: (-64, 4, 0, True),
        66: (-64, 8, 0, True), 54: (-64, 16, 0, True), 36: (-64, 32, 0, True)}  # fmt: skip
LANES = [
    *[Case(s.cublas("sm_90", family="gemm_sn", option=option), partial(cublas.gemm_sn, option=option), HALVES)
      for option in (0, 1)],
    Case(s.cublas("sm_90", family="magma"), cublas.magma, HALVES),
    *[Case(s.cublas("sm_90", family="gemv", option=option), partial(cublas.gemv, row=row), HALVES)
      for option, row in ROWS.items()],
    *[Case(s.cublas("sm_90", family="gemv", option=option, split_k=n),
           partial(cublas.gemv, row=ROWS[option], split_k=n), (HOPPER,)) for option, n in ((7, 2), (10, 3), (66, 5))],
    Case(s.cublas("sm_90", family="gemv", option=5), cublas.gemv_slices, HALVES),
    *[Case(s.cublas("sm_90", family="dot", split_k=n), partial(cublas.dot, split_k=n), HALVES) for n in (1, 2, 3)],
    Case(s.cublas("sm_90", family="dot", split_k=40), partial(cublas.dot, split_k=40), (HOPPER,)),
]  # fmt: skip
TENSOR_CORES = [*BASIC, *NVJET, *CUTLASS, *XMMA]


def with_units(cases: Sequence[Case]) -> list[tuple[Case, MatrixUnit]]:
    """Cases for every unit."""
    return [(case, fp.unit(unit)) for case in cases for unit in case.units]


def first(cases: Sequence[Case]) -> list[tuple[Case, MatrixUnit]]:
    """Cases for one unit each."""
    return with_units([case._replace(units=case.units[:1]) for case in cases])


TINY = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33)
AROUND = tuple(size + more for size in (64, 128, 192, 256, 512) for more in (-1, 0, 1))
LENGTHS = (*TINY, *AROUND, 300, 1000)


def job(unit: MatrixUnit, kind: Kind, shape: tuple[int, int, int], seed: int = 0, **words: Any) -> Job:
    """Operands of a kind for a shape (M, K, N)."""
    (m, k, n), count = shape, max(shape[0], shape[2])
    generator = np.random.default_rng((seed, KINDS.index(kind), k))
    a, b = (Codes(element, (count, k), generator) for element in (unit.a, unit.b))
    rows = kind(Sides(a, b, Codes(unit.d, (count,), generator), None, unit))
    return Job(rows.a[:m], rows.b[:n].T, unit, **words)


def multiplied(x: Job, schedule: Schedule | None, **words: Any) -> Array:
    """fp.matmul of a job."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return fp.matmul(x.a, x.b, accumulate=x.unit, schedule=schedule, **{**x.words(), "strict": False, **words})


def check(x: Job, case: Case, **words: Any) -> None:
    """Compare a product with the composition, NaN by its code."""
    got, want = multiplied(x, case.schedule, **words), case.oracle(x)
    try:
        assert_bits_equal(results(got), want)
    except AssertionError as error:
        raise AssertionError(f"{case.schedule}, {x.unit.name}, M x K x N {x.shape[0]} x {x.k} x {x.shape[1]}, "
                             f"{x.words()}: {error}") from None  # fmt: skip


def matrix(rows: int, columns: int, seed: int = 0) -> Array:
    """Values of several binades."""
    generator = np.random.default_rng(seed)
    return np.ldexp(generator.standard_normal((rows, columns)), generator.integers(-6, 6, (rows, columns))).astype(f32)


def block_scales(x: Job, of_a: str, of_b: str) -> Job:
    """With scales per 1x128 or 128x128, no powers of two."""
    (m, n), blocks = x.shape, -(-x.k // 128)
    generator = np.random.default_rng(7)
    rows, columns = (m if of_a == "1d" else -(-m // 128)), (n if of_b == "1d" else -(-n // 128))
    a = None if of_a == "none" else generator.uniform(0.01, 3, (rows, blocks)).astype(f32)
    b = None if of_b == "none" else generator.uniform(0.01, 3, (blocks, columns)).astype(f32)
    return replace(x, scale_a=a, scale_b=b)
