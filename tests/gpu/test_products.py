"""fpsim.gpu.matmul with schedules, scales and epilogues: the CUDA simulator gives the bits of fpsim.matmul."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import products as simulator
from tests.kit.processes import assert_refused, simulate
from tests.kit.sweeps import case as in_case


@pytest.fixture(scope="module", params=["some", pytest.param("every", marks=pytest.mark.slow)])
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, npt.NDArray[Any]]:
    """Return the results of fpsim.gpu in the simulator, by name."""
    file = tmp_path_factory.mktemp("gpu") / "results.npz"
    return simulate("tests.gpu.simulator.products", file, request.param) | {"every": np.array(request.param == "every")}


def test_products_have_the_bits_of_the_cpu(simulated: dict[str, npt.NDArray[Any]]) -> None:
    for case in simulator.cases(bool(simulated["every"])):
        with in_case(case.name):
            want = simulator.call(fp.matmul, case, simulator.operands(case))
            got = simulated[case.name]
            assert got.dtype == want.dtype or (want.dtype.isbuiltin != 1 and got.dtype.itemsize == want.dtype.itemsize)
            assert_bits_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


@pytest.mark.parametrize("name", simulator.SCALED)
def test_scaled_operands_have_the_bits_of_the_cpu(name: str, simulated: dict[str, npt.NDArray[Any]]) -> None:
    assert_bits_equal(simulated[f"Scaled {name}"], simulator.scaled_product(name, fp.encode_scaled, fp.matmul))


def test_stacks_have_the_bits_of_the_cpu(simulated: dict[str, npt.NDArray[Any]]) -> None:
    for name, (arrays, keywords) in simulator.stacks().items():
        with in_case(name):
            want = fp.matmul(*arrays, **keywords)
            got = simulated[f"stack {name}"]
            assert got.shape == want.shape
            assert_bits_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))
    assert_bits_equal(simulated["stack out"], simulated["stack broadcast"])
    assert_bits_equal(simulated["stack over c"], simulated["stack one b, with c"])
    assert not simulated["stack over its bias and scales"].any()


def test_out_is_filled(simulated: dict[str, npt.NDArray[Any]]) -> None:
    a, b, _ = simulator.operands(simulator.Case("out", simulator.FP8, 40))
    assert_bits_equal(simulated["out"], fp.matmul(a, b, accumulate=simulator.FP8))


def test_cases_are_told_apart() -> None:
    for every, least in ((True, 75), (False, 60)):
        names = [case.name for case in simulator.cases(every)]
        assert len(set(names)) == len(names) > least


SETUP = """
x, y = cuda.to_device(np.zeros((2, 32), np.uint8)), cuda.to_device(np.zeros((32, 3), np.uint8))
halves, floats = (cuda.to_device(np.zeros((2, 32), dtype)) for dtype in (np.float16, np.float32))
memory = cuda.to_device(np.zeros(256, np.uint8))
square, floats_there = memory[:64].reshape(8, 8), memory.view(np.float32).reshape(8, 8)
scaled = fp.gpu.encode_scaled(floats, "e4m3")
stack = cuda.to_device(np.zeros((4, 2, 32), np.float16))
wide, tangled = cuda.to_device(np.zeros((8, 32), np.uint8)), memory[:8].reshape(8, 1)
apart = cuda.to_device(np.zeros((1, 8), np.uint8))
unit, s = "hopper_e4m3_f32", fp.schedules
nvfp4, mxfp8, chain = "blackwell_nvfp4_f32", "blackwell_mxfp8_e4m3_f32", fp.FusedMultiplyAdd("fp32")
two, three = (cuda.to_device(np.full(shape, 0x38, np.uint8)) for shape in ((2, 2), (2, 3)))
sixteen = cuda.to_device(np.full((2, 32), 16, np.uint8))
e5m2 = cuda.to_device(np.zeros((1, 3), fp.E5M2.dtype))
"""
CALLS = {
    "fp.gpu.matmul(stack, stack, accumulate='hopper_f16_f32')": r"ValueError a \(..., M, K\) and b \(..., K, N\) must",
    "fp.gpu.matmul(stack, stack[:3].reshape(3, 32, 2), accumulate='hopper_f16_f32')": r"ValueError the axes of a and b",
    "fp.gpu.matmul(stack, halves.T, halves, accumulate='hopper_f16_f32')": r"ValueError c must have the result's shape",
    "fp.gpu.matmul(stack, scaled, accumulate=unit)": r"TypeError a stack of products on the GPU takes no fp.gpu.Scaled",
    "fp.gpu.matmul(stack, halves.T, accumulate='hopper_f16_f32', scale_a=np.ones((4, 2, 1), np.float32))": (
        r"ValueError scale_a must have two axes at most on the GPU"
    ),
    "fp.gpu.matmul(x, x, accumulate=unit)": r"ValueError a \(M, K\) and b \(K, N\) must agree in K",
    "fp.gpu.matmul(halves, y, accumulate=unit)": r"ValueError hopper_e4m3_f32 takes a of e4m3 .*got float16",
    "fp.gpu.matmul(x, np.zeros((32, 3)), accumulate=unit)": r"TypeError b must be an array on the GPU",
    "fp.gpu.matmul(fp.encode_scaled(np.ones((2, 32)), 'e4m3'), y, accumulate=unit)": r"TypeError a must lie on the GPU",
    "fp.gpu.matmul(x, y, accumulate=None)": r"TypeError accumulate must be a matrix unit, its name, or an accumulator",
    "fp.gpu.matmul(x, y, accumulate=unit, schedule='cublas')": r"TypeError schedule must be one of fp.schedules",
    "fp.gpu.matmul(x, y, accumulate=unit, scale_a=2)": r"ValueError hopper_e4m3_f32 takes no block scales; got scale_a",
    "fp.gpu.matmul(x, y, accumulate=unit, bias='x')": r"TypeError bias must be an array of float32",
    "fp.gpu.matmul(scaled, y, accumulate=chain, schedule=s.FLAT)": r"TypeError an accumulator takes no Scaled operands",
    "fp.gpu.matmul(sixteen, y, accumulate=nvfp4, scale_a=two, scale_b=three)": r"ValueError a must lie in 0 .. 0xf, ",
    "fp.gpu.matmul(x, y, accumulate=mxfp8, scale_a=two[:, :1], scale_b=e5m2)": "ValueError scale_b must be codes of E",
    "fp.gpu.matmul(x, y, accumulate=unit, promote=40)": r"ValueError promote must be a multiple of the 32 terms",
    "fp.gpu.matmul(x, y, accumulate=unit, schedule=s.cublas('sm_90'))": r"ValueError .*strict=False computes it",
    "fp.gpu.matmul(x, y, accumulate=unit, schedule=s.FLAT, promote=32)": r"ValueError promote is part of the schedule",
    "fp.gpu.matmul(x, y, x, accumulate=unit)": r"ValueError hopper_e4m3_f32 takes c of f32 .*got uint8",
    "fp.gpu.matmul(x, y, accumulate=unit, beta=2.0)": r"ValueError beta multiplies c; got no c",
    "fp.gpu.matmul(x, y, accumulate=unit, scale_a=np.ones((3, 1), np.float32))": r"ValueError scale_a must be one n",
    "fp.gpu.matmul(x, y, accumulate=unit, fmt='e4m3')": r"ValueError fmt is for accumulators",
    "fp.gpu.matmul(x, y, accumulate=unit, bias=np.ones(2, np.float32))": r"ValueError bias must have one number",
    "fp.gpu.matmul(x, y, accumulate=unit, out=x)": r"ValueError out must be a .* of float32 and shape \(2, 3\)",
    "fp.gpu.matmul(square, square, accumulate=unit, out=floats_there)": r"ValueError out must not share memory",
    "fp.gpu.matmul(wide, wide.T, accumulate=mxfp8, scale_a=tangled, scale_b=apart, out=floats_there)": (
        r"ValueError out must not share memory with a, b or their scales"
    ),
    "fp.gpu.matmul(scaled, y, accumulate=fp.Exact('fp32'))": r"TypeError an accumulator takes no Scaled operands",
    "fp.gpu.matmul(x, y, accumulate='blackwell_mxfp8_e4m3_f32')": r"ValueError blackwell_mxfp8_e4m3_f32 needs scale_a",
    "fp.gpu.matmul(x, y, accumulate='hopper_e4m3_f31')": r"ValueError accumulate must be .*Did you mean 'hopper_e4m3",
}


def test_bad_input_says_what_was_wanted() -> None:
    assert_refused(SETUP, CALLS)
