"""Quantised layers with backend="gpu": the CUDA simulator gives the bits of the CPU, forwards and backwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import layers as simulator
from tests.kit.processes import simulate
from tests.kit.sweeps import case, sweep

pytest.importorskip("torch")


@sweep("cases", simulator.SOME, simulator.EVERY)
def test_layers_have_the_bits_of_the_cpu(cases: dict[str, tuple[int, int, int]], tmp_path: Path) -> None:
    words = "every" if cases is simulator.EVERY else "some"
    simulated = simulate("tests.gpu.simulator.layers", tmp_path / "results.npz", words)
    for name, sizes in cases.items():
        found = simulator.results(name, sizes, "emulated")
        assert name in ("DEEPSEEK_V3", "MXFP8") or len(found) == 3
        with case(name):
            for key, want in found.items():
                assert_bits_equal(simulated[key], want)
