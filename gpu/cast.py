"""Casts on the GPU: the scalar core in CUDA kernels, with the bits of the casts on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from fpsim.cast import CastOptions, FormatLike, cast_options, refuse_unless_held
from fpsim.core.decode import decode_bits_32, decode_bits_64, decode_fields
from fpsim.core.encode import encode_bits_32, encode_bits_64, encode_fields
from fpsim.core.philox import random_word
from fpsim.formats import DTYPES, FP32, FP64, Format
from fpsim.formats import format as find_format
from fpsim.gpu.array import GpuArray, gpu_array, result_like
from fpsim.gpu.launch import gpu_kernel, launch, uploaded
from fpsim.kernels.layout import decode_plan, encode_plan, source_width
from fpsim.rounding import Rounding

u32, u64 = np.uint32, np.uint64

NO_LAYOUT = np.zeros(17, u32)
STOCHASTIC = int(Rounding.STOCHASTIC)


@cache
def _encode_kernel(width: int, mode: int, kind: int, widened: int) -> Any:
    """The kernel `(source, codes, layout, layout of the source, low and high word of the seed)`.

    width: of the float that is rounded; widened: 0, or the width to which the codes of a narrow source are decoded.
    """
    word: Any = u32 if width == 32 else u64
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64
    decode_bits = decode_bits_32 if width == 32 else decode_bits_64

    def encode(source: Any, codes: Any, layout: Any, of_source: Any, k0: Any, k1: Any) -> None:
        f = encode_fields(layout)
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            bits = decode_bits(word(source[i]), decode_fields(of_source)) if widened else word(source[i])
            random = word(random_word(u64(i), k0, k1)) if mode == STOCHASTIC else word(0)
            codes[i] = encode_bits(bits, random, f, mode, kind)

    return gpu_kernel(encode)


@cache
def _decode_kernel(width: int) -> Any:
    """The kernel `(codes, bits, layout)`."""
    word: Any = u32 if width == 32 else u64
    decode_bits = decode_bits_32 if width == 32 else decode_bits_64

    def decode(codes: Any, bits: Any, layout: Any) -> None:
        g = decode_fields(layout)
        for i in range(cuda.grid(1), bits.size, cuda.gridsize(1)):
            bits[i] = decode_bits(word(codes[i]), g)

    return gpu_kernel(decode)


@cache
def _table_kernel() -> Any:
    """The kernel `(codes, bits, table)`, for formats whose values are looked up."""

    def look_up(codes: Any, bits: Any, table: Any) -> None:
        for i in range(cuda.grid(1), bits.size, cuda.gridsize(1)):
            bits[i] = table[codes[i]]

    return gpu_kernel(look_up)


@cache
def _outside_kernel() -> Any:
    """The kernel `(codes, largest, found)`: found[0] becomes 1 where a code is larger."""

    def search(codes: Any, largest: Any, found: Any) -> None:
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            if codes[i] > largest:
                found[0] = 1

    return gpu_kernel(search)


def encode(
    x: Any, fmt: FormatLike, *, rounding: str | Rounding = "nearest_even", overflow: str = "nonfinite",
    subnormals: str = "keep", seed: int | None = None, random_bits: int = 32, out: Any = None,
) -> Any:  # fmt: skip
    """Round floats on the GPU to a format, as codes: the bits of `fpsim.encode`.

    Args:
      x: torch CUDA tensor, or contiguous array of cupy, numba or another library with `__cuda_array_interface__`, of
        any float dtype and shape.
      fmt, rounding, overflow, subnormals, seed, random_bits: as for `fpsim.encode`; stochastic results are the same as
        on the CPU.
      out: takes the codes: an array of x's kind and shape.

    Returns:
      Codes of x's shape as an array of x's kind: uint8, uint16, uint32 or uint64. The work is queued on the current
      stream of torch or cupy.

    Raises:
      GpuError: no GPU, or no room on it.
      ValueError: unknown format or word, no seed, or an `out` that does not fit.
      TypeError: x is no array of floats on the GPU.

    Source: docs/casts.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.encode(torch.tensor([1.0, 0.3, 500.0]).cuda(), "e4m3"))
    """
    options = cast_options(fmt, rounding, overflow, subnormals, seed, random_bits)
    source = _floats(x)
    result, codes = result_like(source, source.shape, options.fmt.storage, out)
    _encode(source, codes, options)
    return result


def decode(codes: Any, fmt: FormatLike, dtype: npt.DTypeLike = np.float32, out: Any = None) -> Any:
    """The exact values of codes on the GPU: the bits of `fpsim.decode`.

    Args:
      codes: unsigned integers on the GPU, or an array of the format's own dtype.
      fmt: the format, by name, dtype or object.
      dtype: float32 or float64, which must hold every value of the format.
      out: takes the values.

    Returns:
      Array of the codes' kind and shape.

    Raises:
      GpuError: no GPU, or no room on it.
      ValueError: a code outside the format, a dtype that cannot hold it, or an `out` that does not fit.
      TypeError: codes are no integers on the GPU.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.decode(torch.tensor([0x38, 0x7E], dtype=torch.uint8).cuda(), fp.E4M3))
    """
    found, target = find_format(fmt), _target(dtype)
    refuse_unless_held(found, target, "use dtype=np.float64")
    source = gpu_array(codes, "codes")
    if source.fmt not in (None, found):
        raise TypeError(f"codes must be integers or an array of {found}; got {codes.dtype}.")
    if source.words.dtype.itemsize * 8 > found.bits:
        _refuse_outside(source, found)
    result, values = result_like(source, source.shape, DTYPES[target], out)
    _decode(source, source.words, values, found, target)
    return result


def quantize(
    x: Any, fmt: FormatLike, *, rounding: str | Rounding = "nearest_even", overflow: str = "nonfinite",
    subnormals: str = "keep", seed: int | None = None, random_bits: int = 32, out: Any = None,
) -> Any:  # fmt: skip
    """Round floats on the GPU to the values of a format: the bits of `fpsim.quantize`.

    Args: as for `encode`.

    Returns:
      float64 for float64 input, else float32, of x's shape and kind.

    Raises: as `encode`, and a ValueError where the result's dtype cannot hold the format.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.quantize(torch.tensor([0.3, 3.14159]).cuda(), fp.E5M2))
    """
    options = cast_options(fmt, rounding, overflow, subnormals, seed, random_bits)
    source = _floats(x)
    target = FP64 if source.fmt == FP64 else FP32
    refuse_unless_held(options.fmt, target, "pass x in float64")
    result, values = result_like(source, source.shape, DTYPES[target], out)
    codes = cuda.device_array(source.size, options.fmt.storage)
    _encode(source, codes, options)
    _decode(source, codes, values, options.fmt, target)
    return result


def cast(
    x: Any, fmt: FormatLike, *, rounding: str | Rounding = "nearest_even", overflow: str = "nonfinite",
    subnormals: str = "keep", seed: int | None = None, random_bits: int = 32, out: Any = None,
) -> Any:  # fmt: skip
    """Round floats on the GPU to a format that has a dtype: the bits of `fpsim.cast`.

    Args: as for `encode`; `out` has the format's dtype.

    Returns:
      A torch tensor of the format's dtype; codes for cupy and numba, which do not know the dtypes of ml_dtypes.

    Raises: as `encode`, and a ValueError for a format without a dtype.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.cast(torch.tensor([1.0, 0.3]).cuda(), fp.E4M3))
    """
    options = cast_options(fmt, rounding, overflow, subnormals, seed, random_bits)
    if options.fmt.dtype is None:
        raise ValueError(f"{options.fmt} has no NumPy or ml_dtypes dtype to cast to. Use fpsim.gpu.encode or quantize.")
    source = _floats(x)
    result, codes = result_like(source, source.shape, options.fmt.dtype, out)
    _encode(source, codes, options)
    return result


# ---- how a cast runs


def _floats(x: Any) -> GpuArray:
    """An array of floats on the GPU."""
    given = gpu_array(x, "x")
    if given.fmt is None:
        raise TypeError(
            f"x must be an array of floats on the GPU; got {x.dtype}. To read integers as codes use fpsim.gpu.decode."
        )
    return given


def _target(dtype: npt.DTypeLike) -> Format:
    """The format of the values."""
    found = {np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}.get(np.dtype(dtype))
    if found is None:
        raise ValueError(f"dtype must be np.float32 or np.float64 on the GPU; got {dtype!r}.")
    return found


def _refuse_outside(codes: GpuArray, fmt: Format) -> None:
    """A ValueError for a code that the format does not have."""
    found = cuda.to_device(np.zeros(1, np.uint8))
    largest = codes.words.dtype.type((1 << fmt.bits) - 1)
    launch(_outside_kernel(), codes.like, codes.size, codes.words, largest, found)
    if found.copy_to_host()[0]:
        raise ValueError(f"codes of {fmt} must lie in 0 .. {(1 << fmt.bits) - 1:#x}; got larger ones.")


def _encode(source: GpuArray, codes: Any, options: CastOptions) -> None:
    """Fill in the codes of floats."""
    fmt, rounding, overflow, subnormals, seed, random_bits = options
    assert source.fmt is not None
    width = source_width(fmt)
    if source.fmt in (FP32, FP64):
        width = max(width, source.fmt.bits)
    plan = encode_plan(fmt, width, rounding, overflow, subnormals, random_bits)
    words, layout, widened = source.words, NO_LAYOUT, source.fmt.bits != width
    if widened:
        of_source = decode_plan(source.fmt, width)
        if of_source is None:  # values that are looked up first
            words = cuda.device_array(source.size, f"u{width // 8}")
            _decode(source, source.words, words, source.fmt, FP32 if width == 32 else FP64)
            widened = False
        else:
            layout = of_source.layout
    key = 0 if seed is None else seed
    low, high = u64(key & 0xFFFFFFFF), u64(key >> 32)
    kernel = _encode_kernel(width, int(rounding), plan.kind, int(widened))
    launch(kernel, source.like, source.size, words, codes, uploaded(plan.layout), uploaded(layout), low, high)


def _decode(owner: GpuArray, codes: Any, values: Any, fmt: Format, target: Format) -> None:
    """Fill in the words of the values of codes."""
    plan = decode_plan(fmt, target.bits)
    if plan is not None:
        launch(_decode_kernel(target.bits), owner.like, owner.size, codes, values, uploaded(plan.layout))
        return
    table = _table(fmt, target)
    launch(_table_kernel(), owner.like, owner.size, codes, values, uploaded(table))


def widened_codes(given: GpuArray, fmt: Format, wide: Format) -> GpuArray:
    """Codes of a format as codes of one that holds it; a NaN keeps its sign."""
    table = _codes_table(fmt, wide)
    codes = cuda.device_array(given.size, wide.storage)
    launch(_table_kernel(), given.like, given.size, given.words, codes, uploaded(table))
    return given._replace(words=codes, fmt=wide)


@cache
def _codes_table(fmt: Format, wide: Format) -> npt.NDArray[Any]:
    """The code in a wide format of every code."""
    from fpsim.cast import decode as on_cpu
    from fpsim.cast import encode as codes_on_cpu

    return codes_on_cpu(on_cpu(np.arange(1 << fmt.bits, dtype=fmt.storage), fmt), wide)


@cache
def _table(fmt: Format, target: Format) -> npt.NDArray[Any]:
    """The words of the value of every code."""
    from fpsim.cast import decode as on_cpu

    return on_cpu(np.arange(1 << fmt.bits, dtype=fmt.storage), fmt, DTYPES[target]).view(f"u{target.bits // 8}")
