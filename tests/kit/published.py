"""Results that others published, from tests/data/, whose README.md names the sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kit.processes import ROOT
from tests.oracles.units.rows import Rows

Array = npt.NDArray[Any]
DATA = ROOT / "tests" / "data"


def recorded(name: str) -> tuple[Rows, Array]:
    """Return operands and results of 400 rows of a chip; named by chip, operands, accumulator: "H100_f16_f32"."""
    chip, operands, _ = name.split("_")
    # operands of a kind are the same for every chip that takes as many terms
    terms = {"e4m3": 32, "e5m2": 32, "tf32": 4}.get(operands) or {"V100": 4, "A100": 8}.get(chip, 16)
    with np.load(DATA / "hardware.npz") as arrays:
        a, b = (arrays[f"{operands}_x{terms}_{side}"] for side in "ab")
        return Rows(a, b, arrays[f"{name}_c"]), arrays[f"{name}_d"]


def p3109_tables() -> dict[str, Array]:
    """Return the float64 values of all codes by the name of the P3109 format, of 3 to 10 bits."""
    with np.load(DATA / "p3109.npz") as packed:
        names = [str(name) for name in packed["names"]]
        values = np.ascontiguousarray(packed["bytes"].T).view("<f8").ravel()
    ends = np.cumsum([1 << int(name[7:].partition("p")[0]) for name in names])  # "p3109_k8p4se" has 2**8 codes
    assert ends[-1] == values.size
    return dict(zip(names, np.split(values, ends[:-1]), strict=True))
