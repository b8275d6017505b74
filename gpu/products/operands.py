"""Validation of operands of matrix units on the GPU: codes, and block scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import as_array, lies_on_gpu
from fpsim.formats.named import DTYPES
from fpsim.gpu.casts.cast import refuse_outside
from fpsim.gpu.device.array import gpu_array
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import scratch
from fpsim.gpu.device.transfer import host_array
from fpsim.instructions.operands import takes_scales
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit


def operand(x: Any, element: Element, unit: MatrixUnit, name: str) -> GpuArray:
    """Return x as a GPU array of codes of a matrix unit's element; name: the argument that errors name.

    x: codes, or floats of the element's dtype, on the GPU. element: the format that the unit reads for this operand.

    Raises:
      ValueError: x has another format.
      TypeError: x is not an array on the GPU.
    """
    codes = gpu_array(x, name)
    fits = codes.fmt in (None, element.carrier) and codes.words.dtype.itemsize == element.dtype.itemsize
    if not fits:
        raise ValueError(
            f"{unit.name} takes {name} of {element.name} ({DTYPES.get(element.carrier, element.carrier.name)} or its "
            f"codes as {element.dtype}); got {x.dtype}. fpsim.gpu.encode makes codes."
        )
    refuse_outside(codes, element.carrier, name)
    return codes


def on_host(x: Any, name: str) -> npt.NDArray[Any]:
    """Return x, scales or a bias, as a NumPy array, copied if x is on the GPU; name: the argument that errors name."""
    return host_array(x, name) if lies_on_gpu(x) else as_array(x, name)


def block_scales(x: Any, shape: tuple[int, ...], unit: MatrixUnit, name: str) -> Any:
    """Return the codes x of an operand's block scales as a uint8 matrix on the GPU.

    shape: (rows, blocks along K) or its transpose, which x must have. unit: the matrix unit; if it has no block scales,
    x must be None, and the matrix is a placeholder. name: the argument that errors name. Raises a ValueError if scales
    are missing, unwanted, or of another shape or format.
    """
    if not takes_scales(x, unit, name):
        return scratch(shape, np.uint8)  # nobody reads it
    codes, fmt = gpu_array(x, name), unit.scale_format
    assert fmt is not None
    if codes.shape != shape or codes.words.dtype.itemsize != 1 or codes.fmt not in (None, fmt):
        raise ValueError(f"{name} must be codes of {fmt} of shape {shape}; got {x.dtype} of shape {codes.shape}.")
    refuse_outside(codes, fmt, name)
    return codes.matrix
