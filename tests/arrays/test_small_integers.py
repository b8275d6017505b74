"""Integers of fewer than 8 bits, which versions of ml_dtypes have in different widths."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.arrays import is_small_integer


def test_small_integers_are_known_by_name() -> None:
    names = [f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 4)]
    assert all(is_small_integer(np.dtype(getattr(ml_dtypes, name))) for name in names if hasattr(ml_dtypes, name))
    assert not any(map(is_small_integer, map(np.dtype, (np.int8, np.bool_, np.float32, ml_dtypes.bfloat16))))


def test_versions_of_ml_dtypes_that_lack_a_width_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("int1", "uint1"):
        monkeypatch.delattr(ml_dtypes, name, raising=False)
    with pytest.raises(TypeError, match=r"x must be an array of float16, .*; got complex128"):
        fp.encode(1j, fp.E4M3)
