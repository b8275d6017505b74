"""Inputs of other libraries: whose they are, and torch tensors as arrays and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fpsim.arrays import Array, from_torch, integers_of, library_of, lies_on_gpu, packed_as_bytes, to_torch
from fpsim.testing import assert_bits_equal

DTYPES = [
    np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu, np.uint8, np.int8, np.int64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_arrays_become_tensors_and_arrays_again_on_the_same_memory(dtype: type) -> None:
    pytest.importorskip("torch")
    array: Array = np.arange(1, 7).astype(dtype).reshape(2, 3)
    tensor = to_torch(array)
    assert str(tensor.dtype) == f"torch.{np.dtype(dtype).name}"
    back = from_torch(tensor)
    assert back.dtype == array.dtype
    assert_bits_equal(back, array)
    assert np.shares_memory(back, array)


def test_tensors_of_every_class_belong_to_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(2)
    wrapped = x.as_subclass(type("Wrapped", (torch.Tensor,), {}))
    assert [library_of(one) for one in (x, torch.nn.Parameter(x), wrapped)] == ["torch"] * 3
    assert [library_of(one) for one in (np.zeros(2), 1.0)] == ["numpy", "builtins"]


def test_integers_of_a_tensor_have_its_elements_size() -> None:
    torch = pytest.importorskip("torch")
    sizes = [integers_of(torch.ones(3, dtype=dtype)) for dtype in (torch.float8_e5m2, torch.bfloat16, torch.float64)]
    assert [str(x.dtype) for x in sizes] == ["torch.uint8", "torch.int16", "torch.int64"]


def test_pairs_of_fp4_codes_become_bytes_and_others_stay() -> None:
    torch = pytest.importorskip("torch")
    pairs = torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert packed_as_bytes(pairs).tolist() == [0, 1, 2, 3]
    x = torch.zeros(2)
    assert packed_as_bytes(x) is x


class DeviceArray:
    """An array that offers its memory by DLPack."""

    def __init__(self, device: int) -> None:
        self.device = device

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("nothing is read to know where an array is")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


@pytest.mark.parametrize(("device", "on_gpu"), [(1, False), (2, True), (13, True), (10, False)])
def test_dlpack_tells_where_memory_is(device: int, on_gpu: bool) -> None:
    assert lies_on_gpu(DeviceArray(device)) is on_gpu


def test_arrays_of_the_cpu_are_not_on_the_gpu() -> None:
    torch = pytest.importorskip("torch")
    assert not lies_on_gpu(np.zeros(2))
    assert not lies_on_gpu(torch.zeros(2))
    assert lies_on_gpu(type("Interface", (), {"__cuda_array_interface__": {}})())
