"""Exit codes of the command line."""

from __future__ import annotations

from fpsim.files import INTERRUPTED as INTERRUPTED

BAD_INPUT = 2
