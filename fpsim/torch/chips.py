"""The former module of `fp.recipes.on_chip`, kept for one release."""

from __future__ import annotations

from fpsim.recipes.chips import on_chip as on_chip
