"""torch tensors at every entrance of the array functions: the same results as for arrays, or the same refusal."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

fakes: Any = importlib.import_module("torch._subclasses").FakeTensorMode

BF16 = fp.Sequential("bf16")
# What takes an array of floats -> a call of it.
TAKE_VALUES: dict[str, Callable[[Any], Any]] = {
    "encode": lambda x: fp.encode(x, "e5m2"),
    "quantize": lambda x: fp.quantize(x, "e5m2"),
    "cast": lambda x: fp.cast(x, "e5m2"),
    "explain": lambda x: np.asarray(fp.explain(x[0, 0], "e5m2").code),
    "array": lambda x: fp.array(x, "e5m2"),
    "encode_scaled": lambda x: fp.encode_scaled(x, "e5m2", fp.scalings.ROW),
    "quantize_scaled": lambda x: fp.quantize_scaled(x, "e5m2", fp.scalings.ROW),
    "encode_both_ways": lambda x: fp.encode_both_ways(x, "e5m2", fp.scalings.ROW)[1],
    "DelayedScaling": lambda x: fp.DelayedScaling("e5m2").encode(x),
    "convert": lambda x: fp.convert(x, "e5m2"),
    "to_int": lambda x: fp.to_int(x, np.int16),
}
ARRAYS_ONLY = [name for name in TAKE_VALUES if name != "explain"]
# What takes arrays of a small float dtype.
TAKE_FLOATS: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: fp.add(x, x),
    "fma": lambda x: fp.fma(x, x, x),
    "less": lambda x: fp.less(x, x),
    "classify": fp.classify,
    "next_up": fp.next_up,
    "sum": lambda x: fp.sum(x, accumulate=BF16),
    "dot": lambda x: fp.dot(x, x, accumulate=BF16),
    "matmul": lambda x: fp.matmul(x, x.T, accumulate=BF16),
}
# What takes codes, as integers or in the dtype of their format, E4M3.
TAKE_CODES: dict[str, Callable[[Any], Any]] = {
    "decode": lambda x: fp.decode(x, "e4m3"),
    "from_codes": lambda x: fp.EncodedArray.from_codes(x, "e4m3"),
    "add": lambda x: fp.add(x, x, fmt="e4m3"),
    "matmul": lambda x: fp.matmul(x, x.T, accumulate="hopper_e4m3_f32"),
    "dot_add": lambda x: fp.dot_add(x, x, None, "hopper_e4m3_f32"),
    "dot": lambda x: fp.dot(x, x, accumulate="hopper_e4m3_f32"),
    "sum": lambda x: fp.sum(x, accumulate=BF16, fmt="e4m3"),
}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]


def tensor(dtype: torch.dtype) -> torch.Tensor:
    """Numbers that every dtype holds, some of them special."""
    return torch.tensor([[1.0, -0.0, 0.5, 3.0], [-2.0, 0.25, float("nan"), 1.5]]).to(dtype)


def as_numpy(x: torch.Tensor) -> Any:
    """The same array in NumPy, by way of its bytes."""
    fmt = fp.format(x.dtype)
    return np.frombuffer(bytes(x.contiguous().view(torch.uint8).flatten().tolist()), fmt.dtype).reshape(x.shape)


@in_turn("dtype", DTYPES)
@in_turn("name", TAKE_VALUES)
def test_values_are_taken_as_tensors_of_every_float_dtype(name: str, dtype: torch.dtype) -> None:
    x = tensor(dtype)
    assert_bits_equal(TAKE_VALUES[name](x), TAKE_VALUES[name](as_numpy(x)))


@in_turn("dtype", [dtype for dtype in DTYPES if dtype != torch.float64])
@in_turn("name", TAKE_FLOATS)
def test_operands_are_taken_as_tensors(name: str, dtype: torch.dtype) -> None:
    x = tensor(dtype)
    assert_bits_equal(np.asarray(TAKE_FLOATS[name](x)), np.asarray(TAKE_FLOATS[name](as_numpy(x))))


@in_turn("dtype", [torch.uint8, torch.float8_e4m3fn])
@in_turn("name", TAKE_CODES)
def test_codes_are_taken_as_tensors(name: str, dtype: torch.dtype) -> None:
    x = tensor(torch.float8_e4m3fn)
    call, codes = TAKE_CODES[name], as_numpy(x)
    if dtype == torch.uint8:
        x, codes = x.view(torch.uint8), codes.view(np.uint8)
    assert_bits_equal(np.asarray(call(x)), np.asarray(call(codes)))


def test_scales_are_taken_as_a_tensor() -> None:
    x, scales = tensor(torch.float32), torch.tensor([[2.0], [0.5]])
    assert_bits_equal(
        fp.encode_scaled(x, "e4m3", fp.scalings.ROW, scales=scales),
        fp.encode_scaled(as_numpy(x), "e4m3", fp.scalings.ROW, scales=scales.numpy()),
    )


def test_a_scaled_array_is_made_of_tensors() -> None:
    q = fp.encode_scaled(tensor(torch.float32), "e4m3", fp.scalings.MX)
    parts: dict[str, Any] = {name: torch.from_numpy(getattr(q, name)) for name in ("codes", "scales", "scale_codes")}
    again = fp.Scaled(fmt=q.fmt, scaling=q.scaling, **parts)
    assert_bits_equal(again, q)
    assert_bits_equal(again.decode(), q.decode())


@in_turn("name", [*TAKE_VALUES, *TAKE_FLOATS])
def test_a_tensor_that_requires_a_gradient_is_pointed_to_fpsim_torch(name: str) -> None:
    with pytest.raises(TypeError, match=r"must not require a gradient, .*; got a torch tensor .*fp.torch, .*detach"):
        {**TAKE_VALUES, **TAKE_FLOATS}[name](tensor(torch.bfloat16).requires_grad_())


@in_turn("name", [*ARRAYS_ONLY, *TAKE_FLOATS, "decode", "from_codes", "dot_add"])
@in_turn(
    "change, words",
    [
        (lambda x: x.to("meta"), "must have elements; got a torch tensor on the meta device"),
        (lambda x: x.to_sparse(), r"must be a dense tensor; got one of layout torch.sparse_coo. Use \w+.to_dense"),
        (lambda x: fakes().from_tensor(x), "must have elements in memory; got a FakeTensor that NumPy cannot read"),
    ],
)
def test_tensors_without_elements_to_see_are_refused(name: str, change: Callable[..., Any], words: str) -> None:
    x = change(tensor(torch.bfloat16))
    with pytest.raises(TypeError, match=words):
        {**TAKE_CODES, **TAKE_VALUES, **TAKE_FLOATS}[name](x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@in_turn("call", [fp.encode, fp.quantize, fp.convert, fp.decode])
def test_nested_tensors_are_no_arrays(call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"must be a dense tensor; got a nested one. Pass the tensors of .*unbind"):
        call(torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]), "bf16")


def test_a_parameter_is_a_tensor() -> None:
    weight: Any = torch.nn.Parameter(tensor(torch.bfloat16))
    with pytest.raises(TypeError, match="must not require a gradient"):
        fp.quantize(weight, "e4m3")
    assert fp.analysis.error(weight, "e4m3").count == 8  # reports have no gradients to lose
    assert_bits_equal(fp.quantize(weight.detach(), "e4m3"), fp.quantize(as_numpy(weight.detach()), "e4m3"))


def test_conjugated_and_negated_views_are_resolved() -> None:
    imaginary = torch.tensor([1 + 2j, 3 - 4j]).conj().imag  # a view that torch negates when it is read
    assert imaginary.is_neg()
    assert fp.quantize(imaginary, "e4m3").tolist() == [-2.0, 4.0]


def test_dtypes_that_numpy_has_not_are_refused() -> None:
    packed = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(TypeError, match=r"x must have elements that NumPy or ml_dtypes knows; got torch\.float4"):
        fp.encode(packed, "e4m3")


# ---- what the functions of fp.torch take


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_and_proxies_of_a_tracer_are_refused_with_what_to_do() -> None:
    layer = fp.torch.QuantLinear(4, 4, recipe=fp.torch.MXFP8)
    for call in (lambda x: fp.torch.encode(x, "e4m3"), layer):
        with pytest.raises(TypeError, match=r"must be a dense tensor; got a nested one. Pass the tensors of .*unbind"):
            call(torch.nested.nested_tensor([torch.ones(2, 4)]))
        with pytest.raises(TypeError, match=r"torch.fx.symbolic_trace passes no tensors: use torch.export.export"):
            torch.fx.symbolic_trace(call)


def test_scales_and_seeds_may_be_any_arrays_and_integers_of_numpy() -> None:
    x, scales = torch.randn(2, 4), np.array([[0.5], [2.0]], np.float32)
    fixed = scales.copy()
    fixed.flags.writeable = False
    want = fp.torch.fake_quantize(x, "e4m3", "ROW", scales=torch.from_numpy(scales))
    for each in (fixed, scales[::-1].copy()[::-1], scales.astype(ml_dtypes.bfloat16), np.asfortranarray(scales)):
        assert torch.equal(fp.torch.fake_quantize(x, "e4m3", "ROW", scales=each), want)
    for seed in (2**63 + 5, 7):
        seeds: list[Any] = [seed, np.uint64(seed)]
        drawn = [fp.torch.quantize(x, "e4m3", rounding="SR", seed=kind) for kind in seeds]
        assert torch.equal(*drawn)
