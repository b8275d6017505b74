"""Accumulators of fpsim.gpu: the CUDA simulator gives the CPU's bits, and each refusal is one clear sentence."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import sums as simulator
from tests.kit.processes import simulate

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    """Return the results of fpsim.gpu in the simulator, by name."""
    return simulate("tests.gpu.simulator.sums", tmp_path_factory.mktemp("gpu") / "results.npz")


def words(x: Any) -> Array:
    """Bits, for numba gives codes where NumPy has no such dtype."""
    array = np.asarray(x)
    return array.view(f"u{array.itemsize}")


def test_products_have_the_bits_of_the_cpu(simulated: dict[str, Array]) -> None:
    for i, case in enumerate(simulator.cases()):
        want = fp.matmul(case.a, case.b, case.c, accumulate=case.accumulator, fmt=case.formats)
        assert_bits_equal(words(simulated[f"product {i}"]), words(want))


def test_sums_have_the_bits_of_the_cpu(simulated: dict[str, Array]) -> None:
    for i, accumulator in enumerate(simulator.ACCUMULATORS):
        for j, (x, fmt) in enumerate(simulator.terms_of_sums(accumulator)):
            axis = simulator.AXES[(i + j) % len(simulator.AXES)]
            want = fp.sum(x, accumulate=accumulator, fmt=fmt, axis=axis)
            assert_bits_equal(words(simulated[f"sum {i} {j}"]), words(want))


def test_dot_products_have_the_bits_of_the_cpu(simulated: dict[str, Array]) -> None:
    for i, accumulator in enumerate(simulator.ACCUMULATORS):
        x, y = simulator.operands_of_dots()[i % len(simulator.operands_of_dots())]
        assert_bits_equal(words(simulated[f"dot {i}"]), words(fp.dot(x, y, accumulate=accumulator)))
    rows = np.arange(96, dtype=np.uint8).reshape(3, 32), np.arange(32, dtype=np.uint8)
    assert_bits_equal(simulated["dot by unit"], fp.dot(*rows, accumulate="hopper_e4m3_f32"))


def test_bad_input_says_what_was_wanted(simulated: dict[str, Array]) -> None:
    said = simulated["refusals"].tolist()
    assert len(said) == len(simulator.REFUSALS)
    for line, pattern in zip(said, simulator.REFUSALS.values(), strict=True):
        assert re.match(pattern, line), line
