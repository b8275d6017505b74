"""An operand of a product by an integer matrix unit: its integers, scales and zero points."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.instructions.operands import refuse_axes
from fpsim.matrix_units.integer_unit import IntegerElement, IntegerUnit
from fpsim.products.backend import Backend
from fpsim.products.operand import OperandShape, UnitOperand, tiled_shape, with_factors


def read_integers(x: Any, name: str, unit: IntegerUnit, scales: Any, backend: Backend) -> UnitOperand:
    """Return an operand of `fp.matmul` as integers of the unit's input dtype, with its scales and zero points.

    Args:
      x: an array of integers, or a Scaled array of integers.
      name: "a" or "b".
      unit: the integer matrix unit that multiplies it.
      scales: the caller's argument scale_a or scale_b, float32 decode scales; None for no scales.
      backend: the object that reads arrays of the CPU or GPU whose memory holds x.

    Raises:
      ValueError, TypeError: integers or scales that the unit does not accept.
    """
    element = unit.a if name == "a" else unit.b
    scaled = backend.scaled(x, name)
    if scaled is not None:
        return _scaled_integers(scaled, name, element, unit, scales)
    codes = backend.integers(x, element, unit, name)
    refuse_axes(codes.shape, name)
    if scales is None:
        return UnitOperand(OperandShape(name, codes.shape), codes)
    return with_factors(codes, name, unit, backend.floats(scales, f"scale_{name}"), blocks=False)


def _scaled_integers(x: Any, name: str, element: IntegerElement, unit: IntegerUnit, scales: Any) -> UnitOperand:
    """Return the operand for x, an fpsim.Scaled array of integers.

    name: "a" or "b". element: the integer format of this operand in the unit. unit: the unit, which errors name.
    scales: the caller's argument scale_a or scale_b, which must be None, as x has scales already.

    Raises:
      ValueError: x has another format than `element` or a scale of the whole tensor, or `scales` is not None.
    """
    if scales is not None:
        raise ValueError(f"{name} is Scaled and brings its scales; leave scale_{name} out.")
    if x.fmt != element.fmt:
        raise ValueError(f"{unit.name} takes {element.fmt} as {name}; got a Scaled array of {x.fmt}.")
    if x.tensor_scale is not None:
        raise ValueError(f"{name} must have one level of scales; got a Scaled array with a scale of the tensor, too.")
    refuse_axes(x.codes.shape, name)
    facts, factors = tiled_shape(x, name)
    return UnitOperand(facts, x.codes, factors=factors, zero_points=_zero_points(x, name, facts))


def _zero_points(x: Any, name: str, facts: OperandShape) -> Array | None:
    """Return the zero points of a Scaled array of integers as int32; None if it has none, or no elements.

    Their shape is (M, 1) for a, (1, N) for b, or (1, 1) for a single one. If scales change along K, zero points have
    the shape of the scales. x: the array. name: "a" or "b". facts: its OperandShape.
    """
    points = getattr(x, "zero_points", None)
    if points is None or 0 in points.shape:
        return None
    points = np.asarray(points).astype(np.int32)
    if points.size == 1 or facts.along_k:
        return points.reshape(1, 1) if points.size == 1 else points
    index = np.arange(facts.shape[0 if name == "a" else 1]) // facts.across
    return points[index] if name == "a" else points[:, index]
