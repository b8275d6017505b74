"""Precision in systems: memory, collectives, attention, several processes, and runs side by side."""

from __future__ import annotations

from fpsim.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {}, modules=["collectives"])
