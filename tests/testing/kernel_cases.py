"""Kernels that tests of check_kernel share."""

from __future__ import annotations

from functools import cache

from fpsim.testing import check_kernel
from fpsim.testing.mutants.kernels import KERNELS
from fpsim.testing.products.report import KernelReport

# What a check must say of each mutant: a part of its causes.
NAMED = {
    "drops_tail": "drops the terms beyond a multiple of 32",
    "not_promoted": "hopper_e4m3_f32 in one chain",
    "promotes_often": "cutlass_2xacc(64)",
    "half_total": "partial sums of 128 terms by hopper_e4m3_f32 in one chain, joined in FP16",
    "half_accumulator": "hopper_f16_f16",
    "split": "split_k=2",
    "scale_strides": "reads scale_b in memory as if it were stored the other way round",
    "bias_first": "adds the bias before the scales",
    "truncates": "truncates the result",
    "backwards": "adds K from the last term to the first",
    "rounds_products": "Sequential(FP32)",
    "flushes": "takes subnormals of both operands as zeros",
    "reads_again": "reads the last 64 terms again",
}


@cache
def _broken(name: str) -> KernelReport:
    """Return the check of a broken kernel."""
    mutant = KERNELS[name]
    return check_kernel(mutant.make(), **mutant.promise, raises=False)
