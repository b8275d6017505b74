"""Explanations of products that a CPU library adds: by the unit and order of the kernel that it takes for the shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.divergence.divergence import first_divergence
from fpsim.divergence.mechanism import tree_of
from tests.divergence.test_divergence import NAMES, Adds, draw, found_in, operand, product

torch: Any = pytest.importorskip("torch")

CHAIN = fp.FusedMultiplyAdd("fp32")


def by(library: str, layout: str, fmt: Any, shape: tuple[int, int, int]) -> Adds:
    """The arithmetic of the kernel that torch.mm takes for a shape (M, N, K)."""
    chosen = fp.schedules.torch_mm(library, layout=layout).at(*shape, fmt)  # type: ignore[arg-type]
    assert chosen.accumulate == CHAIN
    return Adds(None, CHAIN, chosen.schedule)


def test_an_accumulator_is_explained_in_the_order_of_its_schedule() -> None:
    a, b = operand(draw(5, 1024), None), operand(draw(1024, 8, seed=1), None)
    in_segments, chain = by("avx512", "nn", fp.FP32, (5, 8, 1024)), Adds(None, CHAIN)
    products = []
    for how in (in_segments, chain):
        result = fp.matmul(a.values, b.values, accumulate=CHAIN, schedule=how.schedule)
        products.append(product(a, b, chain)._replace(adds=how, result=result))
    first, second = products
    divergence = found_in(first, second)
    assert "not what the emulator gives" not in str(divergence)
    assert f"left adds by FusedMultiplyAdd(FP32) by {in_segments.schedule}; right adds by FusedMultiplyAdd" in str(
        divergence
    )
    assert "left adds them up from +0 for a sum of their own, right adds them to the running sum." in str(divergence)
    assert divergence.element is not None
    left, right = (float(one.result[divergence.element]) for one in products)
    assert f"left's sum is {left!r} and right's sum is {right!r}." in str(divergence)
    assert tree_of(first) == fp.schedules.tree(replace(in_segments.schedule, operands="fp32"), 1024, n=8)
    assert tree_of(first._replace(adds=in_segments._replace(accumulator=fp.Sequential("bf16")))) is None


def test_two_machines_with_one_accumulator_are_told_apart() -> None:
    a, b = operand(draw(5, 64), None), operand(draw(64, 8, seed=1), None)
    one = product(a, b, Adds(None, CHAIN))
    other = one.result.copy()
    other[1, 2] = np.nextafter(other[1, 2], np.float32(np.inf))
    divergence = first_divergence([one], [one._replace(result=other)], NAMES, step=None)
    assert divergence is not None
    assert "Both name the same sum, so one of the machines adds otherwise." in str(divergence)


def test_diff_names_the_kernel_of_a_library_for_the_shape() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(1024, 64, bias=False)), torch.randn(32, 1024)
    library, shape = fp.schedules.torch_mm("avx512", layout="nt"), (32, 64, 1024)
    in_float32 = fp.analysis.diff(model, x, library, "float32", recipe="FP32")
    assert f"adds by FusedMultiplyAdd(FP32) by {library.at(*shape, fp.FP32).schedule};" in str(in_float32)
    weight = model[0].weight.detach().numpy()
    predicted = fp.matmul(x.numpy(), weight.T, accumulate=CHAIN, schedule=library.at(*shape, fp.FP32).schedule)
    assert float(predicted[in_float32.element]) == in_float32.values[0]
    in_bf16 = fp.analysis.diff(
        model.bfloat16(), x.bfloat16(), "torch_mm('avx512_bf16', layout='nt')", "H100", logits=False
    )
    assert "adds on x86_avx512_bf16_f32 by segments(512, 512); H100 adds on hopper_bf16_f32 in one chain." in str(
        in_bf16
    )


def test_a_schedule_that_would_order_nothing_is_refused() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 16)), torch.randn(4, 64)
    with pytest.raises(
        ValueError, match=r"^layer '0': a schedule needs a recipe with products on matrix units or accum"
    ):
        fp.analysis.diff(model, x, "cublas('sm_90')", "float32", recipe="FP32")
