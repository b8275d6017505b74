"""Operands on the GPU at the door: codes of a format, or arrays of its dtype, and the dtype of what comes back."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fpsim.arrays import is_torch
from fpsim.formats import DTYPES, Format
from fpsim.gpu.arithmetic import _format as format_of
from fpsim.gpu.array import GpuArray, gpu_array
from fpsim.gpu.array import _stored as stored
from fpsim.gpu.cast import _refuse_outside as refuse_outside


def code_operand(x: Any, wanted: Format | None, name: str) -> tuple[GpuArray, Format]:
    """(codes on the GPU, their format).

    Raises:
      ValueError: codes without a format, or out of range.
      TypeError: no array on the GPU, or one of another format than is wanted.
    """
    given = gpu_array(x, name)
    if given.fmt is not None and wanted not in (None, given.fmt):
        raise TypeError(
            f"{name} is an array of {x.dtype}, which stores {given.fmt}; codes of {wanted} were wanted. Round it to "
            f"{wanted} first with fpsim.gpu.encode."
        )
    fmt = format_of(given, wanted, name)
    if given.words.dtype.itemsize * 8 > fmt.bits:
        refuse_outside(given, fmt)
    return given, fmt


def result_dtype(fmt: Format, like: Any) -> np.dtype[Any]:
    """The dtype of a format, or of its codes where the library of an array has none."""
    dtype = DTYPES.get(fmt, fmt.storage)
    if is_torch(like):
        return dtype if hasattr(sys.modules["torch"], dtype.name) else fmt.storage
    return stored(dtype)
