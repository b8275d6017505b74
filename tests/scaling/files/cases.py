"""Files of scaled arrays that several tests write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.scaling.file import save

Content = tuple[dict[str, Array], dict[str, Any]]


SMALL: dict[str, Array] = {
    "codes": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "scales": np.array([[0.5], [-0.0]], np.float32),
}


def assert_same(got: Content, want: Content) -> None:
    assert got[1] == want[1]
    assert repr(got[1]) == repr(want[1])  # -0.0 and the order of keys too
    assert got[0].keys() == want[0].keys()
    for name, x in got[0].items():
        y = want[0][name]
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), name


def small(path: Path) -> bytes:
    """A small file's bytes."""
    save(path, SMALL, {"block": [1, 3]})
    return path.read_bytes()
