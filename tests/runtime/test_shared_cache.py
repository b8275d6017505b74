"""Processes that share one folder of kernels give right results whatever the others compiled before."""

from __future__ import annotations

from pathlib import Path

from tests.kit.processes import Bare

FIRST = """
    import numpy as np, fpsim as fp

    x = np.float32([[1, 2], [3, 4]])
    fp.encode(x, "e4m3")
    print(fp.analysis.range(x, axis=0).amax, fp.quantize(x, "e4m3").tolist())
"""
SECOND = """
    import numpy as np, fpsim as fp

    x = np.float32([[1, 2], [3, 4]])
    print(fp.encode(x.astype(np.float64), "e4m3").tolist())
    print(fp.analysis.range(x, axis=0).amax, fp.quantize(x, "e4m3").tolist())
"""


def test_kernels_of_two_processes_work_in_a_third_order(tmp_path: Path, bare: Bare) -> None:
    """Found by a user: the second process died of a segmentation fault, as numba numbers functions by process."""
    first = bare.python(FIRST, FPSIM_CACHE_DIR=str(tmp_path))
    assert bare.python(SECOND, FPSIM_CACHE_DIR=str(tmp_path)).splitlines() == ["[[56, 64], [68, 72]]", first]
