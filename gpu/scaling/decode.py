"""Decoding of codes and scales to values on the GPU, and transposition of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.layouts import decode_plan
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.table_format import TableFormat
from fpsim.gpu.device.array import dtype_name, gpu_array, result_like
from fpsim.gpu.device.copies import refuse_overlap
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import launch, uploaded
from fpsim.gpu.scaling import value_kernels as kernels
from fpsim.gpu.scaling.areas import areas_of, block_threads
from fpsim.scaling.scaled_arrays import ScaledArrays
from fpsim.scaling.tiling import tiling

NOTHING = np.zeros(1, np.uint8)  # in place of an array that a kernel does not use


def decode_scaled(scaled: ScaledArrays[Any], codes: GpuArray, values: Any, width: int) -> None:
    """Decode a scaled array into `values`: code * scale, or (code - zero point) * scale, for each element.

    Args:
      scaled: the array, of which scales, zero points, format and scaling are read.
      codes: scaled.codes as a GpuArray.
      values: flat GPU array, which receives bits of float32 or float64.
      width: bits of a value, 32 or 64.

    Raises:
      ValueError: float64 does not hold the format's values as normal numbers, or the values overlap the codes.
    """
    tiles, fmt = tiling(scaled.shape, scaled.scaling.block), scaled.fmt
    areas = areas_of(tiles, block_threads(), cut=True)
    scales = gpu_array(scaled.scales, "scales").words
    refuse_overlap(values, codes.words, scales)
    size = int(areas.count) * block_threads()
    places = uploaded(areas.layout)
    if isinstance(fmt, IntegerFormat):
        zeros, affine, largest = uploaded(NOTHING), scaled.zero_points is not None, 0
        if affine:
            zeros = gpu_array(scaled.zero_points, "zero_points").words
            refuse_overlap(values, zeros)
            largest = int(np.iinfo(dtype_name(scaled.zero_points)).max)
        kernel = kernels.integers_kernel(width, affine)
        launch(kernel, codes.like, size, codes.words, values, places, scales, zeros, fmt.highest, largest)
        return
    assert not isinstance(fmt, (LogFMT, TableFormat))
    plan = decode_plan(fmt, width) or decode_plan(fmt, 64)
    if plan is None:
        raise ValueError(f"values of {fmt} must be float64's normal numbers to be decoded; decode them on the CPU.")
    word: Any = np.uint32 if plan.width == 32 else np.uint64
    kernel = kernels.values_kernel(plan.width, width)
    launch(
        kernel, codes.like, size, codes.words, values, places, scales, uploaded(plan.layout), word(fmt.sign_bit)
    )  # fmt: skip


def transposed(array: Any) -> Any:
    """Return the transpose of a matrix on the GPU, as an array of the same library."""
    source = gpu_array(array, "array")
    rows, columns = source.shape
    result, words = result_like(source, (columns, rows), np.dtype(dtype_name(array)))
    launch(kernels.transpose_kernel(), source.like, source.size, source.words, words, rows, columns)
    return result
