"""Conversions of NumPy arrays of codes to torch tensors on the GPU, and of results to unsigned NumPy integers."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import TORCH_INTEGERS, integers_of, is_torch
from fpsim.errors import unknown
from fpsim.gpu.device.device import GpuError

Words = npt.NDArray[Any]
Pair = tuple[str, str]

DEVICE = "cuda"
DTYPES = {
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
    "tf32": "float32", "fp64": "float64",
}  # fmt: skip
FP8 = ("e4m3", "e5m2")


def torch_module() -> Any:
    """Return the module torch; raise GpuError if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise GpuError(
            "fpsim.gpu.hardware calls PyTorch, which is not installed. Install a CUDA build of torch."
        ) from None


def tensor(x: Any, kind: str) -> Any:
    """Return codes or floats as a contiguous tensor on the GPU, with the torch dtype of the format `kind`.

    x: NumPy array or torch tensor, whose bits are reinterpreted, not converted. kind: "e4m3", "e5m2", "fp16", "bf16",
    "fp32", "tf32" (float32) or "fp64". Raises TypeError for elements of another size, and for floats of another format.
    """
    torch = torch_module()
    dtype = getattr(torch, DTYPES[kind])
    array: Any = x.detach() if is_torch(x) else np.ascontiguousarray(x)
    size, name = array.dtype.itemsize, getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))
    if size != dtype.itemsize:
        raise TypeError(f"operands of {kind} must have {dtype.itemsize} bytes per element; got {array.dtype}.")
    if "float" in name and name != DTYPES[kind]:
        raise TypeError(f"operands of {kind} must be {DTYPES[kind]} or codes of that format; got {name}. Cast them.")
    if is_torch(x):
        array = array.to(DEVICE)
        return (array if array.dtype == dtype else array.view(dtype)).contiguous()
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(native.view(TORCH_INTEGERS[size]).copy()).to(DEVICE).view(dtype)


def words(x: Any) -> Words:
    """Return the bits of a torch tensor as a NumPy array of its shape, of unsigned integers of its element size."""
    return np.asarray(integers_of(x.detach().contiguous()).cpu().numpy().view(f"u{x.element_size()}"))


def parts_of(result: Any) -> list[Any]:
    """Return a list of the arrays in `result`, which is an array, a tuple of arrays, or a scaled array.

    A scaled array gives its codes, scales, scale codes, zero points and tensor scale, as far as they exist, and then
    its decoded values.
    """
    if not hasattr(result, "scales"):
        return list(result) if isinstance(result, tuple) else [result]
    parts = (result.codes, result.scales, result.scale_codes, result.zero_points, result.tensor_scale)
    return [part for part in (*parts, result.decode()) if part is not None]


def column_major(x: Any, kind: str) -> Any:
    """Return a (K, N) matrix x as a tensor on the GPU that is stored column after column.

    x: NumPy array or torch tensor, whose bits are reinterpreted as the format `kind`, a name in DTYPES.
    """
    return tensor(x.t().contiguous() if is_torch(x) else np.ascontiguousarray(np.asarray(x).T), kind).t()


def floats(x: Any) -> Any:
    """Return a number or an array of scales, of NumPy or torch, as a float32 tensor of the same shape on the GPU."""
    torch = torch_module()
    if is_torch(x):
        return x.detach().to(DEVICE, torch.float32)
    return torch.from_numpy(np.array(x, np.float32)).to(DEVICE)


def known(kind: str, accepted: tuple[str, ...], name: str) -> str:
    """Return `kind` unchanged; raise ValueError, which names the argument `name`, unless it is in `accepted`."""
    if kind not in accepted:
        raise unknown(name, kind, list(accepted))
    return kind


def shapes_of(a: Any, b: Any) -> tuple[int, int, int]:
    """Return (M, N, K) of the operands a (M, K) and b (K, N); raise ValueError for other shapes or empty operands."""
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0] or 0 in (*a.shape, *b.shape):
        raise ValueError(f"a and b must be (M, K) and (K, N), not empty; got {tuple(a.shape)} and {tuple(b.shape)}.")
    return int(a.shape[0]), int(b.shape[1]), int(a.shape[1])
