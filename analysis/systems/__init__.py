"""Effects of low precision in systems: memory, collectives, attention, several processes, and differences of runs."""

from __future__ import annotations

from fpsim.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {}, modules=["collectives"])
