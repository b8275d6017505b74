"""NumPy's interpretation of any object as a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np


def dtype_of(spec: Any) -> np.dtype[Any] | None:
    """Return an object as a NumPy dtype, or None if it is a number, or NumPy cannot interpret it as a dtype.

    Example:
      >>> from fpsim.formats.dtypes import dtype_of
      >>> dtype_of("f4"), dtype_of({"a": 1}), dtype_of(np.float32(1))
      (dtype('float32'), None, None)
    """
    if isinstance(spec, np.generic):  # whose dtype NumPy would return
        return None
    try:
        dtype: np.dtype[Any] = np.dtype(spec)
    except Exception:  # NumPy reads the attribute `dtype` of any object, which may raise anything
        return None
    return dtype
