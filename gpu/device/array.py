"""Reading of GPU arrays of torch, cupy and numba as flat unsigned integers of their bits, and allocation of results."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from typing import Any

import numpy as np

from fpsim import arrays
from fpsim.gpu.device.device import device_number, require_device
from fpsim.gpu.device.failures import one_sentence, size_in_words
from fpsim.gpu.device.gpu_array import WORDS, GpuArray


def gpu_array(x: Any, name: str) -> GpuArray:
    """Return an array of torch, cupy or numba on the GPU as a `GpuArray`, copied only if not contiguous in C order.

    name: the argument's name in errors.

    Raises:
      GpuError: there is no GPU, or no memory for the copy.
      TypeError: x is not an array on the GPU, its dtype is neither a float nor an integer, or it has the other byte
        order.
    """
    require_device()
    if isinstance(x, GpuArray):  # read before
        return x
    if arrays.is_torch(x):
        return _torch_array(x, name)
    from numba import cuda

    if arrays.has_cuda_interface(x):
        device = getattr(x.device, "id", None) if arrays.is_cupy(x) else None
        if device is not None and device != device_number():
            raise TypeError(_on_other_device(name, str(device)))
        # cupy's arrays are used on cupy's current stream; numba waits for the streams of other libraries
        array = x if arrays.is_numba(x) else cuda.as_cuda_array(x, sync=not arrays.is_cupy(x))
        fmt = arrays.format_of(np.dtype(array.dtype))
        if not np.dtype(array.dtype).isnative:
            raise TypeError(
                f"{name} must have the byte order of the GPU; got {np.dtype(array.dtype).str}. Convert it before it is "
                "sent to the GPU, as in x.astype(x.dtype.newbyteorder('='))."
            )
        if fmt is None and np.dtype(array.dtype).kind not in "iu":
            raise TypeError(f"{name} must hold floats or codes; got {array.dtype} on the GPU.")
        return GpuArray(_flat(array, x, name).view(WORDS[np.dtype(array.dtype).itemsize]), tuple(array.shape), fmt, x)
    if arrays.exports_gpu_memory(x):
        return _through_dlpack(x, name)
    remedy = f"Take fpsim's own function for arrays on the CPU, or numba.cuda.to_device({name})."
    if hasattr(x, "codes"):
        remedy = f"Pass its codes, or {name}.decode()."
    raise TypeError(
        f"{name} must be an array on the GPU: a torch CUDA tensor, or one of cupy or numba; got {type(x).__name__}. "
        + remedy
    )


def _flat(array: Any, like: Any, name: str) -> Any:
    """Return a numba GPU array as a flat one, copied on the GPU if its memory is not contiguous in C order.

    like: the caller's array; the copy runs on the stream of its library. name: the argument's name in the message.
    Raises a TypeError if a stride is not a multiple of the element's size.
    """
    if array.is_c_contiguous():
        return array.reshape(math.prod(array.shape))
    from fpsim.gpu.device.copies import gathered

    itemsize = np.dtype(array.dtype).itemsize
    if any(stride % itemsize for stride in array.strides):
        raise TypeError(f"{name} must have strides of whole elements; got {array.strides}. Copy it first.")
    return gathered(array, like)


def _on_other_device(name: str, device: str) -> str:
    """Return the error text for the argument `name`, an array that is not on numba's current GPU.

    device: the GPU of the array, such as "1" or "cuda:1".
    """
    return (
        f"{name} must be on numba's current GPU, {device_number()}; got one on {device}. Work under "
        f"numba.cuda.gpus[{device.rpartition(':')[2]}], or move it."
    )


def _through_dlpack(x: Any, name: str) -> GpuArray:
    """Return a `GpuArray` of an array that offers its memory only by DLPack, imported by torch or else by cupy.

    The import synchronises the streams of both libraries. name: the argument's name in messages. Raises a TypeError if
    neither torch nor cupy is installed.
    """
    for library in ("torch", "cupy"):
        if library in sys.modules or importlib.util.find_spec(library):
            with one_sentence(f"reading {name} by DLPack"):
                return gpu_array(importlib.import_module(library).from_dlpack(x), name)
    raise TypeError(
        f"{name} is a {type(x).__name__} that offers its memory by DLPack alone, which torch or cupy must read. "
        "Install one of them, or pass an array with __cuda_array_interface__."
    )


def _torch_array(x: Any, name: str) -> GpuArray:
    """Return a torch CUDA tensor as a `GpuArray`, detached from autograd, and copied if it is not contiguous.

    name: the argument's name in errors.

    Raises:
      TypeError: x is on the CPU, on a GPU that is not the current one of torch and of numba, or sparse; or its elements
        are complex numbers, bools, or floats of no known format.
    """
    from numba import cuda

    torch = sys.modules["torch"]
    if not x.is_cuda:
        raise TypeError(
            f"{name} must be on the GPU; got a torch tensor on {x.device}. Move it with {name}.cuda(), or call "
            "the function of fpsim itself, which takes tensors on the CPU."
        )
    if x.device.index != torch.cuda.current_device():
        raise TypeError(
            f"{name} must be on the current device, cuda:{torch.cuda.current_device()}; got {x.device}. "
            f"Use torch.cuda.device({x.device.index})."
        )
    if x.device.index != device_number():
        raise TypeError(_on_other_device(name, str(x.device)))
    arrays.refuse_sparse(x, name)
    fmt = arrays.format_of_tensor(x)
    if fmt is None and (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool):
        raise TypeError(f"{name} must hold floats or codes; got {x.dtype}.")
    with one_sentence(f"a contiguous copy of {name}"):
        integers = arrays.integers_of(x.detach().resolve_neg().contiguous()).reshape(-1)
    return GpuArray(cuda.as_cuda_array(integers).view(WORDS[x.element_size()]), tuple(x.shape), fmt, x)


def result_like(source: GpuArray, shape: tuple[int, ...], dtype: np.dtype[Any], out: Any = None) -> tuple[Any, Any]:
    """Return (result array, the same memory as a flat numba array of unsigned integers).

    Args:
      source: the operand whose library and device the result gets.
      shape, dtype: shape and dtype of the result. A dtype that the library lacks, such as one of ml_dtypes, is replaced
        by the unsigned integer dtype of the same size, which holds codes.
      out: the caller's array, to be returned instead of a new one, or None. A new array is uninitialised.

    Raises:
      TypeError: `out` is not an array on the GPU.
      ValueError: `out` has another library, shape or dtype, or is not contiguous.
      GpuError: the GPU has no memory for a new array.
    """
    if out is not None:
        taken = gpu_array(out, "out")
        if not _is_one_run(out):
            raise ValueError(
                "out must be contiguous in C order on the GPU; got gaps or another order. Pass a new array."
            )
        kept = kept_dtype(dtype, source.like)
        fits = taken.shape == shape and dtype_name(out) == kept.name
        if not fits or arrays.library_of(out) != arrays.library_of(source.like):
            raise ValueError(
                f"out must be a {type(source.like).__name__} of {kept.name} and shape {shape}; got a "
                f"{type(out).__name__} of {dtype_name(out)} and shape {taken.shape}."
            )
        return out, taken.words
    with one_sentence(f"a result of {size_in_words(math.prod(shape) * dtype.itemsize)}"):
        made = _empty(shape, dtype, source.like)
    return made, gpu_array(made, "the result").words


def _is_one_run(x: Any) -> bool:
    """Return whether the memory of a torch, cupy or numba GPU array holds its elements without gaps, in C order.

    A torch tensor that is negated lazily does not count: its memory holds the elements before the negation.
    """
    if arrays.is_torch(x):
        return bool(x.is_contiguous()) and not x.is_neg()  # torch negates the memory's elements lazily
    return bool(x.is_c_contiguous() if arrays.is_numba(x) else x.flags.c_contiguous)


def dtype_name(x: Any) -> str:
    """Return the name of an array's dtype, such as "float32"; torch's prefix "torch." is removed."""
    return str(x.dtype).removeprefix("torch.")


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
    """Return a new uninitialised array of the given shape, of the library of the array `like`.

    The dtype is `kept_dtype(dtype, like)`. torch allocates the array on the device of `like`, cupy and numba on their
    current device.
    """
    kept = kept_dtype(dtype, like)
    if arrays.is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, kept.name), device=like.device)
    if arrays.is_cupy(like):
        return sys.modules["cupy"].empty(shape, kept)
    from numba import cuda

    return cuda.device_array(shape, kept)


def kept_dtype(dtype: np.dtype[Any], like: Any) -> np.dtype[Any]:
    """Return `dtype` if the library of the array `like` has it, else the unsigned integer dtype of the same size.

    torch is asked for a dtype of that name. cupy and numba have only NumPy's built-in dtypes.
    """
    built_in = dtype.num <= np.dtype(np.float16).num
    known = hasattr(sys.modules["torch"], dtype.name) if arrays.is_torch(like) else built_in
    return dtype if known else np.dtype(WORDS[dtype.itemsize])
