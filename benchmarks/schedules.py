"""Library schedules compared with the flat product of the unit, and cuBLAS's families without tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import fpsim as fp
from benchmarks.race import Work
from benchmarks.row import RaceRow

SHAPE = (512, 512, 1024)  # M, N, K
ALLOWED = 1 / 1.1  # of the flat product's rate: a schedule may cost a tenth
FLAT = "flat"
RATE = 1e9  # multiply-adds per second without tensor cores

cublas = fp.schedules.cublas
OF_UNIT: dict[str, dict[str, fp.schedules.Schedule]] = {
    "hopper_e4m3_f32": {
        "2xAcc": fp.schedules.cutlass_2xacc(128), "cuBLAS": cublas("sm_90"), "cuBLAS S = 4": cublas("sm_90", split_k=4),
        "cuBLAS fast S = 4": cublas("sm_90", split_k=4, fast_accum=True),
        "Triton 128, 64": fp.schedules.triton(128, max_num_imprecise_acc=64),
        "DeepGEMM": fp.schedules.deepgemm(), "cuBLAS block-scaled": cublas("sm_90", family="block_scaled"),
    },
    "hopper_f16_f32": {
        "cuBLAS": cublas("sm_90"), "cuBLAS S = 4": cublas("sm_90", split_k=4),
        "cuBLAS CUTLASS": cublas("sm_90", family="cutlass", stages=13),
        "cuBLAS CUTLASS s1688": cublas("sm_90", family="cutlass", stages=0),
        "cuBLAS CUTLASS S = 4, in place": cublas("sm_90", family="cutlass", stages=13, split_k=4, merge=0),
    },
    "ada_e4m3_f32": {"cuBLAS S = 3": cublas("sm_89", split_k=3)},
    "blackwell_e4m3_f32": {"cuBLAS S = 4": cublas("sm_100", split_k=4)},
}  # fmt: skip
WITHOUT_TENSOR_CORES: dict[str, tuple[tuple[int, int, int], fp.schedules.Schedule]] = {
    "gemv 10, M = 1": ((1, 4096, 4096), cublas("sm_90", family="gemv", option=10)),
    "gemv 10, N = 1": ((4096, 1, 4096), cublas("sm_90", family="gemv", option=10)),
    "gemv 46, N = 1, S = 4": ((4096, 1, 4096), cublas("sm_90", family="gemv", option=46, split_k=4)),
    "gemv 0, M = 1": ((1, 4096, 4096), cublas("sm_90", family="gemv", option=0)),
    "gemv 5, M = 1": ((1, 4096, 4096), cublas("sm_90", family="gemv", option=5)),
    "gemmSN, M = 4": ((4, 8192, 600), cublas("sm_90", family="gemm_sn", option=1)),
    "magma, M = 16": ((16, 8192, 45), cublas("sm_90", family="magma")),
    "dot, M = N = 1, S = 8": ((1, 1, 1 << 22), cublas("sm_90", family="dot", split_k=8)),
}


def rows() -> Iterator[RaceRow]:
    """Yield every race of this file on one core."""
    for name, schedules in OF_UNIT.items():
        flat = _work(name, SHAPE, None)
        for title, schedule in schedules.items():
            contestants = {"fpsim": _work(name, SHAPE, schedule), FLAT: flat}
            yield RaceRow(f"{name}, {title}", contestants, {FLAT: ALLOWED}, None, _size(SHAPE), "MAC")
    for title, (shape, schedule) in WITHOUT_TENSOR_CORES.items():
        contestants = {"fpsim": _work("hopper_f16_f32", shape, schedule)}
        yield RaceRow(f"cuBLAS {title}", contestants, {}, RATE, _size(shape), "MAC")

    yield from processor_rows()
    yield from order_rows()


def processor_rows() -> Iterator[RaceRow]:
    """Yield products as torch.mm adds them on processors, compared with the flat product of the same operands."""
    m, n, k = SHAPE
    random = np.random.default_rng(0)
    x, y = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    chain = fp.FusedMultiplyAdd("fp32")
    for isa, fmt, accumulate in (
        ("avx512_bf16", fp.BF16, "x86_avx512_bf16_f32"), ("avx512_fp16", fp.FP16, chain), ("avx2", fp.BF16, chain)
    ):  # fmt: skip
        a, b = fp.cast(x, fmt), fp.cast(y, fmt)
        library = fp.schedules.torch_mm(isa)  # type: ignore[arg-type]
        contestants: dict[str, Work] = {
            "fpsim": partial(fp.matmul, a, b, schedule=library), FLAT: partial(fp.matmul, a, b, accumulate=accumulate)
        }  # fmt: skip
        yield RaceRow(f"torch.mm {isa} {fmt}", contestants, {}, None, _size(SHAPE), "MAC")
    a, b = fp.cast(x[:64], fp.BF16), fp.cast(y[:, :64], fp.BF16)
    flat = partial(fp.matmul, a, b, accumulate="x86_amx_bf16_f32")
    for threads in (1, 2):  # two share K
        contestants = {"fpsim": partial(fp.matmul, a, b, schedule=fp.schedules.torch_mm("amx", threads)), FLAT: flat}
        yield RaceRow(f"torch.mm amx BF16, threads = {threads}", contestants, {}, None, _size((64, 64, k)), "MAC")
    contestants = {
        "fpsim": partial(fp.matmul, x, y, schedule=fp.schedules.eigen()),
        FLAT: partial(fp.matmul, x, y, accumulate=chain),
    }  # fmt: skip
    yield RaceRow("Eigen avx512 FP32", contestants, {}, None, _size(SHAPE), "MAC")


def order_rows() -> Iterator[RaceRow]:
    """Yield races of trees compared with the schedules of which they are copies, and of orders that no schedule has."""
    shape = (256, 512, 1024)
    of_trees = [("hopper_f16_f32", *row) for row in OF_UNIT["hopper_f16_f32"].items()]
    for unit, title, schedule in [*of_trees, *(("ada_e4m3_f32", *row) for row in OF_UNIT["ada_e4m3_f32"].items())]:
        order = fp.schedules.tree(schedule, shape[2], n=shape[1], accumulate=unit)
        contestants = {"fpsim": _work(unit, shape, order), "schedule": _work(unit, shape, schedule)}
        yield RaceRow(f"tree of {title}", contestants, {"schedule": 1 / 1.2}, None, _size(shape), "MAC")
    for title, made in {"chain of pairs": _chain_of_pairs(shape[2]), "random pairs": _random_pairs(shape[2])}.items():
        rng = np.random.default_rng(0)
        a, b = rng.standard_normal((shape[0], shape[2]), np.float32), rng.standard_normal(shape[:0:-1], np.float32)
        work = partial(fp.matmul, a, b, schedule=made)
        yield RaceRow(f"float32 tree, {title}", {"fpsim": work}, {}, RATE, _size(shape), "MAC")


def _chain_of_pairs(k: int) -> tuple[Any, ...]:
    """Return the order of a chain of sums of two neighbours."""
    order: tuple[Any, ...] = (0, 1)
    for term in range(2, k, 2):
        order = (order, (term, term + 1))
    return order


def _random_pairs(k: int) -> tuple[Any, ...]:
    """Return the order of a sum of k terms that adds two random partial sums until one is left, as nested tuples."""
    rng, parts = np.random.default_rng(0), list[Any](range(k))
    while len(parts) > 1:
        i, j = sorted(int(x) for x in rng.choice(len(parts), 2, replace=False))
        last = parts.pop(j)
        parts[i] = (parts[i], last)
    order: tuple[Any, ...] = parts[0]
    return order


def _size(shape: tuple[int, int, int]) -> int:
    m, n, k = shape
    return m * n * k


def _work(name: str, shape: tuple[int, int, int], schedule: fp.schedules.Schedule | fp.schedules.Tree | None) -> Work:
    unit, (m, n, k) = fp.unit(name), shape
    rng = np.random.default_rng(0)
    a = fp.encode(rng.standard_normal((m, k), np.float32), unit.a.carrier)
    b = fp.encode(rng.standard_normal((k, n), np.float32), unit.b.carrier)
    scales: dict[str, Any] = {}
    if isinstance(schedule, fp.schedules.Schedule) and schedule.block_scaled:
        blocks = -(-k // 128)
        scales = {
            "scale_a": rng.random((m, blocks), np.float32) + 1,
            "scale_b": rng.random((blocks, -(-n // 128)), np.float32) + 1,
        }  # fmt: skip
    out = np.empty((m, n), np.float32)
    return partial(fp.matmul, a, b, accumulate=unit, schedule=schedule, out=out, **scales)
