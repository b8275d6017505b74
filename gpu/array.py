"""Arrays on the GPU at the door: tensors of torch, arrays of cupy or numba become words; results come back alike."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import format_of, is_torch
from fpsim.formats import DTYPES, Format
from fpsim.gpu.device import require_device

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
TORCH_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # that all versions share with the array interface


class GpuArray(NamedTuple):
    """An array on the GPU."""

    words: Any  # flat and contiguous, of unsigned integers
    shape: tuple[int, ...]
    fmt: Format | None  # of its dtype; None for integers
    like: Any  # what came in

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def gpu_array(x: Any, name: str) -> GpuArray:
    """An array on the GPU, without a copy where it is contiguous.

    Raises:
      GpuError: there is no GPU.
      TypeError: not an array on the GPU, or of a dtype without a meaning here.
    """
    require_device()
    if is_torch(x):
        return _torch_array(x, name)
    from numba import cuda

    if _is_numba(x) or hasattr(x, "__cuda_array_interface__"):
        array = x if _is_numba(x) else cuda.as_cuda_array(x)
        fmt = format_of(np.dtype(array.dtype))
        if fmt is None and np.dtype(array.dtype).kind not in "iu":
            raise TypeError(f"{name} must hold floats or codes; got {array.dtype} on the GPU.")
        return GpuArray(_flat(array, name).view(_word(array.dtype)), tuple(array.shape), fmt, x)
    raise TypeError(
        f"{name} must be an array on the GPU: a torch CUDA tensor, or one of cupy or numba; got {type(x).__name__}. "
        f"Take fpsim's own function for arrays on the CPU, or numba.cuda.to_device({name})."
    )


def _is_numba(x: Any) -> bool:
    return bool(getattr(x, "__cuda_ndarray__", False))


def _word(dtype: Any) -> Any:
    return np.dtype(WORDS[np.dtype(dtype).itemsize])


def _flat(array: Any, name: str) -> Any:
    """A contiguous array as one axis."""
    if not array.is_c_contiguous():
        raise TypeError(f"{name} must be contiguous (C order) on the GPU; got strides {array.strides}. Copy it first.")
    return array.reshape(math.prod(array.shape))


def _torch_array(x: Any, name: str) -> GpuArray:
    """A torch tensor; autograd sees nothing of what happens here."""
    from numba import cuda

    torch = sys.modules["torch"]
    if not x.is_cuda:
        raise TypeError(
            f"{name} must lie on the GPU; got a torch tensor on {x.device}. Move it with {name}.cuda(), or call "
            "fpsim's own function, which takes it as it is."
        )
    if x.device.index != torch.cuda.current_device():
        raise TypeError(
            f"{name} must lie on the current device, cuda:{torch.cuda.current_device()}; got {x.device}. "
            f"Use torch.cuda.device({x.device.index})."
        )
    fmt = next((found for found in DTYPES if str(x.dtype) == f"torch.{DTYPES[found].name}"), None)
    if fmt is None and (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool):
        raise TypeError(f"{name} must hold floats or codes; got {x.dtype}.")
    size = x.element_size()
    integers = x.detach().contiguous().view(getattr(torch, TORCH_WORDS[size])).reshape(-1)
    return GpuArray(cuda.as_cuda_array(integers).view(WORDS[size]), tuple(x.shape), fmt, x)


def result_like(given: GpuArray, shape: tuple[int, ...], dtype: np.dtype[Any], out: Any = None) -> tuple[Any, Any]:
    """(result of the kind of what came in, its words); dtype: of NumPy or ml_dtypes.

    Raises:
      TypeError, ValueError: an `out` of another kind, shape or dtype.
    """
    if out is not None:
        taken = gpu_array(out, "out")
        fits = taken.shape == shape and _dtype_of(out) == dtype.name
        if not fits or type(out) is not type(given.like):
            raise ValueError(
                f"out must be a {type(given.like).__name__} of {dtype.name} and shape {shape}; got a "
                f"{type(out).__name__} of {_dtype_of(out)} and shape {taken.shape}."
            )
        return out, taken.words
    made = _maker(given.like)(shape, dtype)
    return made, gpu_array(made, "the result").words


def _dtype_of(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _maker(like: Any) -> Callable[[tuple[int, ...], np.dtype[Any]], Any]:
    """Makes arrays of the kind of another one, on the same device."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return lambda shape, dtype: torch.empty(shape, dtype=getattr(torch, dtype.name), device=like.device)
    if type(like).__module__.partition(".")[0] == "cupy":
        cupy = sys.modules["cupy"]
        return lambda shape, dtype: cupy.empty(shape, _stored(dtype))
    from numba import cuda

    return lambda shape, dtype: cuda.device_array(shape, _stored(dtype))


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype itself where libraries without ml_dtypes know it, else its codes."""
    return dtype if dtype.kind in "fiu" and dtype.isbuiltin == 1 else np.dtype(WORDS[dtype.itemsize])


def stream_of(like: Any) -> Any:
    """The stream on which the owner of an array works now; 0 for the default one."""
    from numba import cuda

    if is_torch(like):
        return cuda.external_stream(sys.modules["torch"].cuda.current_stream().cuda_stream)
    if type(like).__module__.partition(".")[0] == "cupy":
        return cuda.external_stream(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0
