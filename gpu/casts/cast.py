"""Casts on the GPU: the functions of fpsim/core in CUDA kernels, bit for bit as the casts on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arrays.inputs import code_outside
from fpsim.casts.cast import decode as decode_on_cpu
from fpsim.casts.cast import encode as encode_on_cpu
from fpsim.casts.cast import refuse_unless_held
from fpsim.core.layouts import DecodePlan, decode_plan, encode_plan, source_width
from fpsim.errors import shown
from fpsim.formats.cast_options import CastKeywords, CastOptions, FormatLike, options_of, with_cast_keywords
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.named import DTYPES, FP32, FP64, NAMED, Format
from fpsim.formats.named import format as find_format
from fpsim.gpu.casts.kernels import CastWay, cast_kernel, look_up_kernel, outside_kernel, range_kernel
from fpsim.gpu.device.array import gpu_array, result_like
from fpsim.gpu.device.copies import refuse_overlap
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.groups import as_groups
from fpsim.gpu.device.launch import fetched, launch, scratch, uploaded, zeroed

i64, u64 = np.int64, np.uint64


@with_cast_keywords
def encode(x: Any, fmt: FormatLike, *, out: Any = None, **keywords: Unpack[CastKeywords]) -> Any:
    """Round floats on the GPU to a format, and return their codes, bit for bit as `fpsim.encode`.

    Args:
      x: torch CUDA tensor, or array of cupy, numba or another library with `__cuda_array_interface__`, of any float
        dtype and shape. One with gaps or in another order than C's is copied first, on the GPU.
      fmt, rounding, overflow, subnormals, seed, random_bits: as for `fpsim.encode`; stochastic results are the same as
        on the CPU.
      out: the array for the codes, of x's library and shape; None for a new one.

    Returns:
      Codes of x's shape as an array of x's library: uint8, uint16, uint32 or uint64. The work is queued on the current
      stream of torch or cupy.

    Raises:
      GpuError: no GPU, or too little memory on it.
      ValueError: unknown format or option, no seed, or an `out` that does not fit.
      TypeError: x is not an array of floats on the GPU.

    Source: docs/casts.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.encode(torch.tensor([1.0, 0.3, 500.0]).cuda(), "e4m3"))
    """
    options = options_of(encode, fmt, keywords)
    source = float_array(x)
    result, codes = result_like(source, source.shape, options.fmt.storage, out)
    fill_codes(source, codes, options)
    return result


def decode(codes: Any, fmt: FormatLike, dtype: npt.DTypeLike = np.float32, out: Any = None) -> Any:
    """Return the exact values of codes on the GPU, bit for bit as `fpsim.decode`.

    Args:
      codes: unsigned integers on the GPU, or an array of the format's own dtype.
      fmt: the format, by name, dtype or object.
      dtype: float32 or float64, which must hold every value of the format.
      out: the array for the values, of the codes' library and shape; None for a new one.

    Returns:
      Array of `dtype`, of the codes' library and shape.

    Raises:
      GpuError: no GPU, or too little memory on it.
      ValueError: a code is not a code of the format, the dtype cannot hold the format, or `out` does not fit.
      TypeError: codes are not integers on the GPU.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.decode(torch.tensor([0x38, 0x7E], dtype=torch.uint8).cuda(), fp.E4M3))
    """
    source_fmt, real = find_format(fmt), dtype_of(dtype)
    target = None if real is None else {np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}.get(real)
    if target is None:
        raise ValueError(f"dtype must be np.float32 or np.float64 on the GPU; got {shown(dtype)}.")
    refuse_unless_held(source_fmt, target, "use dtype=np.float64")
    source = gpu_array(codes, "codes")
    if source.fmt not in (None, source_fmt):
        raise TypeError(f"codes must be integers or an array of {source_fmt}; got {codes.dtype}.")
    refuse_outside(source, source_fmt)
    result, values = result_like(source, source.shape, DTYPES[target], out)
    fill_values(source, source.words, values, source_fmt, target)
    return result


@with_cast_keywords
def quantize(x: Any, fmt: FormatLike, *, out: Any = None, **keywords: Unpack[CastKeywords]) -> Any:
    """Round floats on the GPU to the values of a format, bit for bit as `fpsim.quantize`.

    Args:
      x, fmt, rounding, overflow, subnormals, seed, random_bits: as for `fpsim.gpu.encode`.
      out: the array for the values, of x's library and shape and the dtype of the result; None for a new one.

    Returns:
      float64 for float64 input, else float32, of x's shape and library.

    Raises: as `encode`, and a ValueError if the result's dtype cannot hold the format.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.quantize(torch.tensor([0.3, 3.14159]).cuda(), fp.E5M2))
    """
    options = options_of(quantize, fmt, keywords)
    source = float_array(x)
    target = FP64 if source.fmt == FP64 else FP32
    refuse_unless_held(options.fmt, target, "pass x in float64")
    result, values = result_like(source, source.shape, DTYPES[target], out)
    back, fits = decode_plan(options.fmt, target.bits), source_width(options.fmt) <= target.bits
    if back is not None and fits:
        fill_codes(source, values, options, target, back)  # in registers
        return result
    codes = scratch(source.size, options.fmt.storage)
    fill_codes(source, codes, options)
    fill_values(source, codes, values, options.fmt, target)
    return result


@with_cast_keywords
def cast(x: Any, fmt: FormatLike, *, out: Any = None, **keywords: Unpack[CastKeywords]) -> Any:
    """Round floats on the GPU to a format that has a dtype, bit for bit as `fpsim.cast`.

    Args:
      x, fmt, rounding, overflow, subnormals, seed, random_bits: as for `fpsim.gpu.encode`.
      out: the array for the result, of x's library and shape and the format's dtype; None for a new one.

    Returns:
      A torch tensor of the format's dtype; codes for cupy and numba, which do not know the dtypes of ml_dtypes.

    Raises: as `encode`, and a ValueError for a format without a dtype.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.cast(torch.tensor([1.0, 0.3]).cuda(), fp.E4M3))
    """
    options = options_of(cast, fmt, keywords)
    if options.fmt.dtype is None:
        raise ValueError(f"{options.fmt} has no NumPy or ml_dtypes dtype to cast to. Use fpsim.gpu.encode or quantize.")
    source = float_array(x)
    result, codes = result_like(source, source.shape, options.fmt.dtype, out)
    fill_codes(source, codes, options)
    return result


def float_array(x: Any) -> GpuArray:
    """Return x as a GpuArray of floats; raise a TypeError if x is not an array of floats on the GPU."""
    array = gpu_array(x, "x")
    if array.fmt is None:
        raise TypeError(
            f"x must be an array of floats on the GPU; got {x.dtype}. To read integers as codes use fpsim.gpu.decode."
        )
    return array


def refuse_outside(codes: GpuArray, fmt: Format, name: str = "codes") -> None:
    """Raise a ValueError if an integer of `codes` is not a code of the format `fmt`.

    name: the argument that errors name. Arrays of a float dtype are not checked, nor are integers with as many bits as
    the format, whose bits are codes whether they are signed or not.
    """
    bits = 8 * codes.words.dtype.itemsize
    if codes.fmt is not None or bits == fmt.bits:
        return
    signed = int(str(getattr(codes.like, "dtype", "")).removeprefix("torch.").startswith("int"))
    most = min(fmt.bits, bits - signed)
    if most == bits:
        return
    outside = zeroed(1, np.uint64)
    launch(
        outside_kernel(), codes.like, codes.size, codes.words, codes.words.dtype.type((1 << most) - 1), outside
    )  # fmt: skip
    highest = int(fetched(outside)[0])
    if highest:
        raise code_outside(name, fmt, highest - (1 << bits) if signed and highest >> (bits - 1) else highest)


def has_outside(integers: GpuArray, lowest: int, highest: int) -> bool:
    """Return whether an 8-bit integer is below `lowest` or above `highest`; waits for the GPU.

    The integers are signed if lowest < 0.
    """
    outside = zeroed(1, np.uint8)
    launch(range_kernel(), integers.like, integers.size, integers.words, i64(lowest), i64(highest), outside)
    return bool(fetched(outside)[0])


def fill_codes(
    source: GpuArray, codes: Any, options: CastOptions, target: Format | None = None, back: DecodePlan | None = None
) -> None:
    """Round the floats of `source` as `options` say, and write to `codes` their codes, or the values of their codes.

    codes: a 1-D array of unsigned integers. target, back: None to write codes. To write values, as bits of floats,
    target is their format, FP32 or FP64, and back the plan that decodes codes to it.
    """
    fmt, rounding, overflow, subnormals, seed, random_bits = options
    assert source.fmt is not None
    width = target.bits if target else source_width(fmt)
    if source.fmt in (FP32, FP64):
        width = max(width, source.fmt.bits)
    plan = encode_plan(fmt, width, rounding, overflow, subnormals, random_bits)
    words, widened = source.words, None
    if source.fmt.bits != width:
        widened = decode_plan(source.fmt, width)
        if widened is None:  # values that are looked up first
            words = scratch(source.size, f"u{width // 8}")
            fill_values(source, source.words, words, source.fmt, FP32 if width == 32 else FP64)
    freezes = is_named(fmt)
    way = CastWay(
        _bits(words), _bits(codes), width, widened is not None, True, back is not None, int(rounding), plan.kind,
        widened.frozen if widened and freezes else None, plan.frozen if freezes else None,
        back.frozen if back and freezes else None,
    )  # fmt: skip
    _run(way, source.like, words, codes, (widened, plan, back), 0 if seed is None else seed)


def fill_values(owner: GpuArray, codes: Any, values: Any, fmt: Format, target: Format) -> None:
    """Write the values of `codes`, 1-D codes of the format `fmt`, to `values` as bits of floats.

    owner: a GPU array of equal size, whose library's stream is used. values: 1-D unsigned integers. target: FP32 or
    FP64, the format of the values.
    """
    plan = decode_plan(fmt, target.bits)
    if plan is None:
        refuse_overlap(values, codes)
        launch(look_up_kernel(), owner.like, owner.size, codes, values, uploaded(_table(fmt, target)))
        return
    frozen = plan.frozen if is_named(fmt) else None
    way = CastWay(_bits(codes), _bits(values), target.bits, reads=True, of_source=frozen)
    _run(way, owner.like, codes, values, (plan, None, None), 0)


def _run(way: CastWay, like: Any, source: Any, target: Any, plans: tuple[Any, Any, Any], seed: int) -> None:
    """Launch the kernel of a cast from `source` to `target`, 1-D arrays of unsigned integers.

    way: the kernel's compile-time parameters. like: the array whose library's stream is used. plans: DecodePlan of the
    source, EncodePlan, and DecodePlan of the result; None for a stage that the cast does not have. Their constants are
    passed to the kernel as arrays, except those that `way` compiles in. seed: the seed of stochastic rounding, or 0.
    """
    refuse_overlap(target, source)
    frozen = (way.of_source, way.to_code, way.of_result)
    used = [None if constants is not None else plan for constants, plan in zip(frozen, plans, strict=True)]
    none = np.zeros(1, np.uint32 if way.width == 32 else np.uint64)
    layouts = [uploaded(none if plan is None else plan.layout) for plan in used]
    launch(
        cast_kernel(way), like, target.size, source, target, *as_groups((source, target), way.groups.length), *layouts,
        u64(seed & 0xFFFFFFFF), u64(seed >> 32), each=way.groups.each,
    )  # fmt: skip


def _bits(words: Any) -> int:
    """Return the width of an array's elements in bits."""
    return 8 * int(words.dtype.itemsize)


def is_named(fmt: Format) -> bool:
    """Return whether a format is one of fpsim's own, for which kernels are compiled with its constants.

    Other formats share kernels that read the constants from arrays.
    """
    return NAMED.get(fmt.name) == fmt


def widened_codes(source: GpuArray, fmt: Format, wide: Format) -> GpuArray:
    """Return the codes `source` of the format `fmt` converted to codes of `wide`, as a new GpuArray of equal shape.

    wide: a format that holds all values of `fmt`. A NaN keeps its sign.
    """
    table = codes_table(fmt, wide)
    codes = scratch(source.size, wide.storage)
    launch(look_up_kernel(), source.like, source.size, source.words, codes, uploaded(table))
    return source._replace(words=codes, fmt=wide)


@cache
def codes_table(fmt: Format, wide: Format) -> npt.NDArray[Any]:
    """Return a NumPy array: for every code of the format `fmt`, the code of its value in the wider format `wide`."""
    return encode_on_cpu(decode_on_cpu(np.arange(1 << fmt.bits, dtype=fmt.storage), fmt), wide)


@cache
def _table(fmt: Format, target: Format) -> npt.NDArray[Any]:
    """Return the float bits of the values of all codes of the format `fmt`, as a 1-D NumPy array of unsigned integers.

    target: FP32 or FP64, the format of the floats.
    """
    return decode_on_cpu(np.arange(1 << fmt.bits, dtype=fmt.storage), fmt, DTYPES[target]).view(f"u{target.bits // 8}")
