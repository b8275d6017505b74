"""NumPy's interpretation of any object as a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np


def dtype_of(spec: Any) -> np.dtype[Any] | None:
    """Return an object as a NumPy dtype, or None if NumPy cannot interpret it as one.

    Example:
      >>> from fpsim.formats.dtypes import dtype_of
      >>> dtype_of("f4"), dtype_of({"a": 1})
      (dtype('float32'), None)
    """
    try:
        dtype: np.dtype[Any] = np.dtype(spec)
    except Exception:  # NumPy reads the attribute `dtype` of any object, which may raise anything
        return None
    return dtype
