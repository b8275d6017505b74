"""Operands on the GPU at the door: codes of a format, or arrays of its dtype, and the dtype of what comes back."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.formats import DTYPES, Format
from fpsim.gpu.array import GpuArray, gpu_array
from fpsim.gpu.operands import format_of_codes


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
    return given, format_of_codes(given, wanted, name)


def result_dtype(fmt: Format) -> np.dtype[Any]:
    """The dtype of a format, or of its codes where it has none."""
    return DTYPES.get(fmt, fmt.storage)
