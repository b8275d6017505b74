"""Quantised layers with backend="gpu": the CUDA simulator gives the bits of the CPU, forwards and backwards."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pytest

from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import layers as simulator
from tests.kit.processes import simulate

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, npt.NDArray[Any]]:
    """The results of layers on the simulated GPU, by name."""
    return simulate("tests.gpu.simulator.layers", tmp_path_factory.mktemp("gpu") / "results.npz")


@pytest.mark.parametrize("name", simulator.CASES)
def test_layers_have_the_bits_of_the_cpu(name: str, simulated: dict[str, npt.NDArray[Any]]) -> None:
    for key, want in simulator.results(name, "emulated").items():
        assert_bits_equal(simulated[key], want)
