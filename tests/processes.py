"""Runs a snippet in a process of its own, for what a process decides once: caches, switches, imports."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python(script: str, root: Path = ROOT, **environment: str) -> str:
    """What the script prints, run from `root` so that it imports the package that lies there."""
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    run = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()
