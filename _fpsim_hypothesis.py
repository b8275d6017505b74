"""The plugin for Hypothesis: a profile for tests of fpsim. It imports fpsim only when a failure is printed.

This module is outside the package, so that importing Hypothesis does not import fpsim.
PYTEST_DONT_REWRITE is a mark for pytest, which would warn if a plugin's module was imported before the plugin.
"""

from __future__ import annotations

from typing import Any

PROFILE = "fpsim"


def register() -> None:
    """Make `settings.load_profile("fpsim")` and `pytest --hypothesis-profile=fpsim` work.

    The profile has no deadline, since the first example of a test may compile a kernel, and prints NumPy's floats as
    their patterns.
    """
    from hypothesis import settings
    from hypothesis.vendor.pretty import for_type_by_name

    settings.register_profile(PROFILE, deadline=None)
    for name in ("ndarray", "generic"):
        for_type_by_name("numpy", name, _print)


def _print(x: Any, printer: Any, cycle: bool) -> None:
    """Print a NumPy array or number: in this profile as a line to paste into a test, in others as its repr."""
    from hypothesis import settings

    if settings.get_current_profile_name() == PROFILE:
        from fpsim.testing.pasted import pasted

        text = pasted(x)
    else:
        text = repr(x)
    for number, line in enumerate(text.splitlines()):
        if number:
            printer.break_()
        printer.text(line)
