"""fpsim.gpu without a GPU: the CUDA simulator gives the CPU's bits, and each refusal is one clear sentence."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.arithmetic.keywords import OPERATIONS
from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import cases
from tests.gpu.simulator import functions as simulator
from tests.kit.processes import assert_refused, simulate
from tests.kit.sweeps import in_turn

without_gpu = pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")
on_gpu = pytest.mark.skipif(not fp.gpu.available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, npt.NDArray[Any]]:
    """Return the results of fpsim.gpu in the simulator, by name."""
    return simulate("tests.gpu.simulator.functions", tmp_path_factory.mktemp("gpu") / "results.npz")


def test_casts_have_the_bits_of_the_cpu(simulated: dict[str, npt.NDArray[Any]]) -> None:
    for dtype, fmt, mode in simulator.cast_cases():
        x, options = simulator.values(dtype), simulator.cast_options(mode)
        assert_bits_equal(simulated[f"encode {dtype} {fmt.name} {mode}"], fp.encode(x, fmt, **options))
        if f"quantize {fmt.name} {mode}" in simulated and dtype == "float32":
            assert_bits_equal(simulated[f"quantize {fmt.name} {mode}"], fp.quantize(x, fmt, **options))
    for fmt in simulator.FORMATS:
        assert_bits_equal(simulated[f"decode {fmt.name}"], fp.decode(simulator.codes_of(fmt), fmt, np.float64))


def test_arithmetic_has_the_bits_and_flags_of_the_cpu(simulated: dict[str, npt.NDArray[Any]]) -> None:
    for i, (name, fmt, options) in enumerate(simulator.arithmetic_cases()):
        codes = simulator.operands(fmt, simulator.ARITHMETIC.get(name, 1))
        result, flags = getattr(fp, name)(*codes, fmt=fmt, flags=True, **options)
        want = result.astype(np.uint8) if name in simulator.COMPARED else result
        assert_bits_equal(simulated[f"arithmetic {i}"], want)
        assert_bits_equal(simulated[f"flags {i}"], flags)


def test_operands_may_differ_in_format_and_come_as_floats(simulated: dict[str, npt.NDArray[Any]]) -> None:
    x, y = simulator.operands(fp.E4M3, 1)[0], simulator.operands(fp.E5M2, 1)[0]
    assert_bits_equal(simulated["mixed"], fp.multiply(x, y, fmt=("e4m3", "e5m2"), out_fmt="bf16"))
    assert_bits_equal(simulated["one element"], fp.add(x, x[:1], fmt="e4m3"))
    assert_bits_equal(simulated["halves"], fp.add(simulator.HALVES, simulator.HALVES[::-1]))
    want = fp.convert(simulator.HALVES, "e4m3", rounding="up")
    assert_bits_equal(simulated["converted"], want.view(np.uint8))


@pytest.mark.parametrize(("name", "count"), simulator.RECORDED.items())
def test_arithmetic_can_be_recorded_in_a_graph(name: str, count: int, simulated: dict[str, npt.NDArray[Any]]) -> None:
    assert_bits_equal(simulated[f"recorded {name}"], getattr(fp, name)(*[simulator.HALVES] * count))


@in_turn("name", cases.cases())
def test_calls_give_what_they_give_on_the_cpu(name: str, simulated: dict[str, npt.NDArray[Any]]) -> None:
    for i, want in enumerate(cases.on_cpu(cases.cases()[name])):
        assert_bits_equal(simulated[f"{name} {i}"], want)


@pytest.mark.parametrize("name", simulator.UNITS)
def test_products_have_the_bits_of_the_cpu(name: str, simulated: dict[str, npt.NDArray[Any]]) -> None:
    a, b, c, scales = simulator.product(name)
    words: dict[str, Any] = {} if scales is None else {"scale_a": scales[0], "scale_b": scales[1]}
    assert_bits_equal(simulated[f"matmul {name}"], fp.matmul(a, b, c, accumulate=name, **words))
    if f"promoted {name}" in simulated:
        promoted = fp.matmul(a, b, c, accumulate=name, promote=2 * fp.unit(name).terms)
        assert_bits_equal(simulated[f"promoted {name}"], promoted)
        rows = np.ascontiguousarray(b.T[:3])
        want = fp.matmul(a, rows.T, accumulate=name)[np.arange(3), np.arange(3)]
        assert_bits_equal(simulated[f"dot_add {name}"].view(want.dtype), want)


# ---- what they are called, take and say


def test_the_operations_of_the_gpu_are_those_of_the_cpu_by_name_keywords_and_description() -> None:
    assert set(OPERATIONS) <= set(fp.gpu.__all__)
    for name, called in OPERATIONS.items():
        ours, theirs = getattr(fp, name), getattr(fp.gpu, name)
        shown = [
            [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]
            for function in (ours, theirs)
        ]
        assert shown[0] == shown[1]
        first = len(called.operands) + bool(called.target)
        assert [word for word, *_ in shown[0][:first]] == [*called.operands, called.target][:first]
        assert [word for word, *_ in shown[0][first:]] == list(called.keywords)
        assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind, _ in shown[0][first:])
        assert (theirs.__name__, theirs.__module__) == (name, "fpsim.gpu.arithmetic.functions")
        assert theirs.__doc__.partition("\n\n")[0] == ours.__doc__.partition("\n\n")[0]
        for section in re.findall(r"    (?:Args|Keywords):.*?(?=\n\n)", ours.__doc__, flags=re.S):
            assert section in theirs.__doc__
        assert f"This is `fpsim.{name}` on the GPU, with the same bits and flags" in theirs.__doc__
        assert f"fp.gpu.{name}(" in theirs.__doc__


# ---- bad input


@without_gpu
@pytest.mark.parametrize("name", ["encode", "quantize", "cast", "decode"])
def test_without_a_gpu_casts_say_so(name: str) -> None:
    with pytest.raises(fp.gpu.GpuError, match=r"needs an NVIDIA GPU with its driver; found no CUDA device"):
        getattr(fp.gpu, name)(np.ones(1, np.uint8 if name == "decode" else np.float32), "e4m3")


@without_gpu
def test_without_a_gpu_arithmetic_says_so() -> None:
    with pytest.raises(fp.gpu.GpuError, match="found no CUDA device"):
        fp.gpu.add(np.ones(1, np.float16), np.ones(1, np.float16))


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'enocde'"):
        _ = fp.gpu.enocde
    with pytest.raises(AttributeError, match=r"'fpsim.gpu' has no attribute 'explain'\. Use fpsim\.explain"):
        _ = fp.gpu.explain
    assert set(fp.gpu.__all__) <= set(dir(fp.gpu))


SETUP = """
x, y = cuda.to_device(np.zeros((2, 3), np.float32)), cuda.to_device(np.zeros(4, np.uint8))
"""
CALLS = {
    "fp.gpu.encode(np.zeros(3), 'e4m3')": r"TypeError x must be an array on the GPU: .*got ndarray",
    "fp.gpu.encode(y, 'e4m3')": r"TypeError x must be an array of floats on the GPU; got uint8",
    "fp.gpu.encode(x, 'e4m33')": r"ValueError .*e4m33",
    "fp.gpu.encode(x, 'e4m3', rounding='stochastic')": r"ValueError stochastic rounding needs a seed",
    "fp.gpu.encode(x, 'e4m3', out=y)": r"ValueError out must be a .* of uint8 and shape \(2, 3\); got .*shape \(4,\)",
    "fp.gpu.decode(cuda.to_device(np.uint8([3, 99])), 'e2m1')": r"ValueError codes must lie in 0 .. 0xf, .*got 0x63",
    "fp.gpu.decode(cuda.to_device(np.int8([3, -1])), 'e2m1')": r"ValueError codes must lie in 0 .. 0xf, .*got -0x1",
    "fp.gpu.decode(cuda.to_device(np.int8([3, -2])), 'bf16')": r"ValueError codes must lie in 0 .. 0xffff, .*got -0x2",
    "fp.gpu.decode(cuda.to_device(np.int16([3, -2])), 'tf32')": r"ValueError codes must lie .*, .*got -0x2",
    "fp.gpu.encode(cuda.to_device(np.ones(2, '>f4')), 'e4m3')": r"TypeError x must have the byte order .* got >f4\.",
    "fp.gpu.decode(x, 'e4m3')": r"TypeError codes must be integers or an array of E4M3; got float32",
    "fp.gpu.decode(y, 'e4m3', np.int32)": r"ValueError dtype must be np.float32 or np.float64 on the GPU",
    "fp.gpu.cast(x, 'p3109_k5p2se')": r"ValueError .*no NumPy or ml_dtypes dtype",
    "fp.gpu.add(y, y)": r"ValueError a holds integers: say which format",
    "fp.gpu.add(x, x, fmt='e4m3')": r"TypeError a is an array of float32, .* but fmt says codes of E4M3",
    "fp.gpu.add(y, cuda.to_device(np.zeros(3, np.uint8)), fmt='e4m3')": "ValueError add needs operands whose",
    "fp.gpu.add(3, 4, fmt='e4m3')": r"TypeError a must be an array on the GPU: .*got int",
    "fp.gpu.add(y, 256, fmt='e4m3')": r"ValueError b must lie in 0 .. 0xff, the codes of E4M3; got 0x100",
    "fp.gpu.add(y, 1.5, fmt='e4m3')": r"TypeError b must be codes or of a float dtype; got float",
    "fp.gpu.add(cuda.to_device(np.uint8([3, 99])), 1, fmt='e2m1')": r"ValueError a must lie in 0 .. 0xf, .*got 0x63",
    "fp.gpu.encode(x, 'e4m3', out=cuda.to_device(np.zeros((3, 2), np.uint8)).T)": r"ValueError out must be contiguous",
    "fp.gpu.quantize(x, 'e4m3', out=x)": r"ValueError out must not share memory with the input",
    "fp.gpu.from_int(x, 'e4m3')": r"TypeError n must be an array of integers on the GPU; got float32",
    "fp.gpu.to_int(x, 'e4m3')": r"ValueError dtype must be an integer dtype such as",
    "fp.gpu.add(y, y, fmt=('e4m3', 'e5m2'))": r"ValueError .*out_fmt",
    "fp.gpu.add(y, y, fmt='fp16')": r"ValueError a must hold codes of FP16 as uint16; got uint8",
    "fp.gpu.sqrt(cuda.to_device(np.int64([56])), fmt='e4m3')": r"ValueError a must hold .* as uint8; got int64\.",
    "fp.gpu.add(y, y, fmt='e4m3', round='up')": r"TypeError add takes the keywords",
    "fp.gpu.less(y, y, fmt='e4m3', round='up')": r"TypeError less takes the keywords fmt, .*; got 'round'\.",
    "fp.gpu.add(y, fmt='e4m3')": r"TypeError add\(\) missing a required argument: 'b'",
    "fp.gpu.encode(fp.gpu.encode_scaled(x, 'e4m3'), 'e4m3')": r"TypeError .*got Scaled\. Pass its codes, or x.decode",
    "fp.gpu.decode(y, 'e4m3', 'float99')": r"ValueError dtype must be np.float32 .*; got 'float99'",
    "fp.gpu.add(y, y, fmt='e4m3', flags='some')": r"ValueError flags must be one of False, True, any",
}


def test_bad_input_says_what_was_wanted() -> None:
    assert_refused(SETUP, CALLS)
