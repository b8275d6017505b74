"""General loops, which serve every recipe, instead of those that large arrays compile for one."""

from __future__ import annotations

import pytest

from fpsim.scaling import plan, tile_jobs

ENDLESS = 1 << 60  # elements


def take_common_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arrays of any size use the loops of short ones, in tests of results that don't depend on the loop.

    tests/scaling/test_loops.py and those of long arrays in test_encode_scaled.py compare the loops bit by bit.
    """
    monkeypatch.setattr(tile_jobs, "FUSED", ENDLESS)
    monkeypatch.setattr(tile_jobs, "SHORT", ENDLESS)
    monkeypatch.setattr(plan, "FEW_TILES", ENDLESS)
