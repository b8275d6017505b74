"""Shorter arrays for most tests of checks: a check spends half of its time on arrays of a million elements."""

from __future__ import annotations

import math

import pytest

from fpsim.testing.quantizers import integer_sources, properties
from fpsim.testing.quantizers.given_scales import check as given_check
from fpsim.testing.quantizers.given_scales import inputs as given_inputs
from fpsim.testing.quantizers.scales import check as scaled_check

SHORTER = (1 << 16) + 1033  # elements, still beyond an index of 16 bits


@pytest.fixture
def of_a_million() -> None:
    """Keep the long arrays in a test that asks for this fixture."""


@pytest.fixture(autouse=True)
def _shorter_arrays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "of_a_million" in request.fixturenames:
        return
    shorter = tuple(shapes[1:] if math.prod(shapes[0]) >= 1 << 19 else shapes for shapes in properties.LARGE)
    monkeypatch.setattr(properties, "LARGE", shorter)
    monkeypatch.setattr(scaled_check, "LARGE", scaled_check.LARGE[1:])
    for module in (integer_sources, given_inputs, given_check):
        monkeypatch.setattr(module, "LARGE", SHORTER)
