"""Schedules whose trees several tests compare."""

from __future__ import annotations

from collections.abc import Iterator

import fpsim as fp
from fpsim.schedules import Schedule

s = fp.schedules


E4M3, F16, BF16 = "hopper_e4m3_f32", "hopper_f16_f32", "hopper_bf16_f32"


RUN: list[tuple[Schedule, str]] = [
    (s.FLAT, E4M3), (s.FLAT, "ampere_f16_f16"), (s.FLAT, "hopper_mma_e4m3_f32"), (s.cutlass_2xacc(128), E4M3),
    (s.cublas(split_k=4), E4M3), (s.cublas(split_k=3), BF16), (s.cublas(fast_accum=True), E4M3),
    (s.cublas(family="cutlass", stages=13, split_k=3), BF16),
    (s.cublas(family="cutlass", stages=0, split_k=3, merge=0), F16),
    (s.cublas(family="cutlass", split_k=3, merge=4), F16), (s.triton(96, 64), E4M3), (s.torch_rowwise(), E4M3),
    (s.cublas("sm_89", split_k=5, merge="pairwise"), "ada_e4m3_f32"), (s.cublas("sm_89", split_k=4), "ada_e4m3_f32"),
    (s.cublas(family="gemv", option=10), F16), (s.cublas(family="gemv", option=36, split_k=2), BF16),
    (s.cublas(family="gemv", option=11), BF16), (s.cublas(family="gemv", option=5), F16),
    (s.cublas(family="gemm_sn", option=1), BF16), (s.cublas(family="magma"), F16),
    (s.cublas(family="dot", split_k=3), BF16), (s.cublas(family="dot", split_k=131), F16),
]  # fmt: skip


def schedules_of() -> Iterator[Schedule]:
    """Many schedules for 16-bit operands."""
    yield s.FLAT
    for count in (1, 2, 3, 7):
        yield s.cublas(split_k=count)
        yield s.cublas(split_k=count, tail_loss=False)
        yield s.cublas(family="dot", split_k=count)
        for merge in (0, 2, 4):
            yield s.cublas(family="cutlass", stages=7, split_k=count, merge=merge)
    for option in (6, 10, 11, 35, 36, 41, 5):
        yield s.cublas(family="gemv", option=option)
    yield from (s.cublas(family="gemm_sn"), s.cublas(family="gemm_sn", option=1), s.cublas(family="magma"))
    yield from (s.cutlass_2xacc(32), s.cutlass_2xacc(64), s.triton(64, 32))
