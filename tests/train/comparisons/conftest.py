"""Fixtures that several tests of this folder take."""

from __future__ import annotations

import pytest


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their figures, which take longer than all else that these tests do."""
    from fpsim.display.pages import Picture
    from fpsim.train.comparisons import page

    monkeypatch.setattr(page, "_picture", lambda figure, name, title: Picture(title, ""))
