"""Functions from text, as the package's own modules define theirs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any


def function(source: str, **names: object) -> Callable[..., Any]:
    """A function called f, as a module's source defines it."""
    found: dict[str, Any] = {"__name__": "fpsim.made_up", **names}
    exec(textwrap.dedent(source), found)
    made: Callable[..., Any] = found["f"]
    return made
