"""Equality of reports, in which NaN equals NaN, as after saving and loading."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


class EqualByValue:
    """Base class of dataclasses with eq=False: objects are equal if their compared fields are, and NaN equals NaN.

    Arrays in fields are equal if dtype, shape and all bits are.

    Example:
      >>> from fpsim.analysis.measures.equality import EqualByValue
      >>> from dataclasses import dataclass
      >>> @dataclass(frozen=True, eq=False)
      ... class Row(EqualByValue):
      ...     error: float
      >>> Row(float("nan")) == Row(float("nan")), Row(1.0) == Row(2.0)
      (True, False)
    """

    def __eq__(self, other: object) -> bool:
        return _key(self) == _key(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_key(self))


def _key(value: Any) -> Any:
    """Return a hashable object that is equal for equal values, in which NaN, arrays and dataclasses are replaced."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN", None
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    if is_dataclass(value) and isinstance(value, EqualByValue):
        return type(value), *(_key(getattr(value, field.name)) for field in fields(value) if field.compare)
    return value
