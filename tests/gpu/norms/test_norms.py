"""softmax and norms of fpsim.gpu: the CUDA simulator gives the CPU's bits, and each refusal is one clear sentence."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import norms as simulator
from tests.kit.processes import assert_refused, simulate

NAMES = ("softmax", "log_softmax", "rms_norm", "layer_norm")


def words(x: Any) -> npt.NDArray[Any]:
    """Return bits, since numba has codes where it knows no such dtype."""
    array = np.asarray(x)
    return array.view(f"u{array.itemsize}")


def check(calls: list[simulator.Call], simulated: dict[str, npt.NDArray[Any]]) -> int:
    """Compare results and refusals of calls with the CPU's, and return how many were refused."""
    assert len(simulated) == len(calls)
    refused = 0
    for i, call in enumerate(calls):
        want, got = np.asarray(simulator.result_of(fp, call, np.asarray)), simulated[str(i)]
        if want.dtype.kind == "U":
            assert str(got) == str(want), call
            refused += 1
            continue
        known = want.dtype in (np.float16, np.float32, np.float64)  # dtypes of numba
        assert (got.shape, got.dtype) == (want.shape, want.dtype if known else words(want).dtype), (call, got)
        try:
            assert_bits_equal(words(got), words(want))
        except AssertionError as reason:
            raise AssertionError(f"{call}: {reason}") from None
    return refused


def test_softmax_and_norms_have_the_bits_of_the_cpu(tmp_path: Path) -> None:
    assert check(simulator.calls(), simulate("tests.gpu.simulator.norms", tmp_path / "results.npz")) == 0


@pytest.mark.slow
def test_random_calls_have_the_bits_and_refusals_of_the_cpu(tmp_path: Path) -> None:
    results = simulate("tests.gpu.simulator.norms", tmp_path / "results.npz", "random")
    assert check(simulator.random_calls(), results) < 40


@pytest.mark.parametrize("name", NAMES)
def test_keywords_and_description_are_those_of_the_cpu(name: str) -> None:
    ours, theirs = getattr(fp, name), getattr(fp.gpu, name)
    shown = [
        [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]
        for function in (ours, theirs)
    ]
    assert shown[0] == shown[1]
    assert theirs.__doc__.partition("\n\n")[0] == ours.__doc__.partition("\n\n")[0]
    for section in re.findall(r"    (?:Args|Keywords):.*?(?=\n\n)", ours.__doc__, flags=re.S):
        assert section in theirs.__doc__
    assert f"This is `fpsim.{name}` on the GPU, with the same bits" in theirs.__doc__


@pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")
@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_they_say_so(name: str) -> None:
    with pytest.raises(fp.gpu.GpuError, match="found no CUDA device"):
        getattr(fp.gpu, name)(np.ones(3, np.float16))


SETUP = """
x, codes = cuda.to_device(np.ones((2, 3), np.float16)), cuda.to_device(np.uint8([3, 99]))
pair, wide = cuda.to_device(np.ones(2, np.float16)), cuda.to_device(np.ones(3))
"""
CALLS = {
    "fp.gpu.softmax(np.ones(3, np.float16))": r"TypeError x must be an array on the GPU: .*got ndarray",
    "fp.gpu.softmax(None)": r"TypeError x must be an array on the GPU: .*got NoneType",
    "fp.gpu.softmax(codes)": r"ValueError x holds integers: say which format",
    "fp.gpu.softmax(codes, fmt='e2m1')": r"ValueError x must lie in 0 .. 0xf, the codes of E2M1; got",
    "fp.gpu.softmax(x, fmt='bf16')": r"TypeError x is an array of float16, which stores FP16; but codes of BF16",
    "fp.gpu.softmax(x, axis=2)": r"ValueError axis must be one of the 2 axes of x",
    "fp.gpu.softmax(wide)": r"ValueError softmax takes formats of up to 32 bits; got FP64",
    "fp.gpu.softmax(x, axes=1)": r"TypeError softmax takes the keywords axis, .* Did you mean 'axis'\?",
    "fp.gpu.softmax(x, accumulate='fp32')": r"TypeError accumulate must be fp.LaneSum\(\), Sequential,",
    "fp.gpu.log_softmax(x, rounding='stochastic')": r"ValueError stochastic rounding needs a seed",
    "fp.gpu.log_softmax(x, intermediate='fp64')": r"ValueError intermediate must be FP32, or a signed",
    "fp.gpu.rms_norm(x, pair)": r"ValueError weight must have one element for each .*shape \(3,\); got \(2,\)",
    "fp.gpu.rms_norm(x, np.ones(3, np.float16))": r"TypeError weight must be an array on the GPU: .*got ndarray",
    "fp.gpu.rms_norm(x, eps=-1)": r"ValueError eps must be a finite number >= 0; got -1",
    "fp.gpu.layer_norm(x, bias=pair)": r"ValueError bias must have one element for each .*shape \(3,\); got \(2,\)",
    "fp.gpu.layer_norm(x, fmt=('fp16',))": r"ValueError fmt must name one format, or 3 for layer_norm",
}


def test_bad_input_says_what_was_wanted() -> None:
    assert_refused(SETUP, CALLS)
