"""The scalar core is what CUDA kernels will call; the simulator needs no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.core import cuda_simulator as simulator
from tests.kit.processes import simulate
from tests.oracles import casts


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, npt.NDArray[Any]]:
    """Return the results of the simulated kernels, by name."""
    return simulate("tests.core.cuda_simulator", tmp_path_factory.mktemp("cuda") / "results.npz")


def test_simulated_kernels_encode_to_the_same_codes(simulated: dict[str, npt.NDArray[Any]]) -> None:
    for dtype, x in simulator.SOURCES.items():
        for fmt in simulator.CAST_FORMATS:
            for mode in simulator.MODES:
                # the oracle, because a CPU kernel for every mode takes seconds to compile
                want = [casts.encode(float(value), fmt, mode.name.lower()) for value in x]
                assert_bits_equal(simulated[f"encode {dtype} {fmt.name} {mode.name}"], np.array(want, fmt.storage))


def test_simulated_kernels_decode_to_the_same_values(simulated: dict[str, npt.NDArray[Any]]) -> None:
    for name, codes in simulator.DECODED.items():
        fmt = fp.format(name)
        assert_bits_equal(simulated[f"decode {name}"], fp.decode(codes.astype(fmt.storage), fmt))


@pytest.mark.parametrize("name", simulator.COUNTS)
def test_simulated_kernels_compute_the_same_codes_and_flags(name: str, simulated: dict[str, npt.NDArray[Any]]) -> None:
    for fmt in simulator.ARITHMETIC_FORMATS:
        columns = simulator.operands(fmt, simulator.COUNTS[name])
        for rounding in simulator.roundings(name):
            words: dict[str, Any] = {"fmt": fmt}
            if name not in ("next_up", "next_down", "classify"):
                words["rounding"] = rounding
            got = simulated[f"{name} {fmt.name} {rounding}"], simulated[f"{name} {fmt.name} {rounding} flags"]
            if name == "classify":
                assert_bits_equal(got[0], fp.classify(*columns, fmt=fmt))
                continue
            codes, flags = getattr(fp, name)(*columns, **words, flags=True)
            assert_bits_equal(got[0], codes)
            assert_bits_equal(got[1], flags)


@pytest.mark.parametrize("unit", simulator.UNITS, ids=lambda unit: unit.name)
def test_simulated_kernels_add_up_as_matrix_units_do(
    unit: fp.MatrixUnit, simulated: dict[str, npt.NDArray[Any]]
) -> None:
    columns: dict[str, Any] = simulator.unit_rows(unit)
    want = fp.dot_add(columns.pop("a"), columns.pop("b"), columns.pop("c"), unit, **columns)
    assert_bits_equal(simulated[f"dot_add {unit.name}"], want)
