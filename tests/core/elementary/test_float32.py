"""The scalar float32 functions: their coefficients, and the proof that they are correctly rounded for every input."""

from __future__ import annotations

import numpy as np
import pytest

from fpsim.core.elementary.corrections import CORRECTIONS, EDGES
from fpsim.core.elementary.float32 import FUNCTIONS, WIDE
from tests.core.elementary import make_coefficients, prove


def test_the_coefficients_are_those_that_the_script_computes() -> None:
    assert make_coefficients.FILE.read_text() == make_coefficients.text()


def test_the_corrections_are_written_as_the_script_writes_them() -> None:
    assert prove.FILE.read_text() == prove.written(CORRECTIONS, EDGES)
    assert list(FUNCTIONS) == list(WIDE) == list(CORRECTIONS) == list(EDGES)


def test_a_proof_finds_a_wrong_result_and_how_close_it_was() -> None:
    source, result = CORRECTIONS["exp2"][0]
    found = prove.proof("exp2", np.array([source, source + 1], np.uint32))
    assert found.wrong == ((source, result),)
    assert -54 < found.closest < -53


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_float32_result_is_correctly_rounded(name: str) -> None:
    near = prove.near_inputs(name)
    found = prove.proof(name, near)
    assert found.near > 10
    assert found.wrong == CORRECTIONS[name]
    assert prove.edges(name) == EDGES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_evaluations_are_much_closer_than_the_margin_of_the_proof(name: str) -> None:
    assert prove.largest_error(name, 20_000) < prove.MARGIN / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_halves_of_the_smallest_numbers_are_rounded_by_the_term_that_follows(name: str) -> None:
    assert prove.wrong_halves(name) == 0
