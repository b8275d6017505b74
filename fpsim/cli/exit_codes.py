"""Exit codes of the command line."""

from __future__ import annotations

BAD_INPUT = 2


INTERRUPTED = 130  # 128 + SIGINT, as in shells
