"""The entry point of the command `fpsim`. It is outside the package, so that it runs before fpsim is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while fpsim is imported ends it with one line, as in fpsim/cli/main.py."""
    try:
        from fpsim.cli.main import main as run
    except KeyboardInterrupt:
        print("fpsim: Interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
    run()
