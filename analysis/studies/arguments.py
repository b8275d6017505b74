"""Validation of arguments of studies: shell patterns of the names of layers, and positive numbers."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

from fpsim.errors import SHOWN, shown


def require_positive(name: str, value: Any) -> None:
    """Raise a TypeError or ValueError unless the argument `name` is a positive finite number that a float can hold."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number; got {shown(value)}.")
    if not 0 < value <= sys.float_info.max:  # type: ignore[operator]
        raise ValueError(f"{name} must be a positive number; got {shown(value)}.")


def patterns_of(patterns: Any, argument: str = "layers", least: int = 1) -> tuple[str, ...]:
    """Return the user's shell patterns as a tuple; raise a TypeError if `patterns` is anything else.

    patterns: one pattern, or a sequence of at least `least` patterns. argument: the name of the user's argument, for
    the error message.
    """
    several = (patterns,) if isinstance(patterns, str) else patterns
    is_texts = isinstance(several, Sequence) and all(isinstance(pattern, str) for pattern in several)
    if not is_texts or len(several) < least:
        raise TypeError(
            f"{argument} must be a shell pattern or several, such as 'blocks.*.mlp.*'; got {shown(patterns)}."
        )
    return tuple(several)


def matches(name: str, patterns: str | Sequence[str]) -> bool:
    """Return whether a name matches a shell pattern. `patterns`: one pattern, or several of which one must match."""
    return any(fnmatchcase(name, pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns))


def nearest_names(name: str, names: Sequence[str]) -> str:
    """Return those of `names` that are most similar to `name` (or a pattern) as text, such as "'fc.0', 'fc.1'"."""
    return ", ".join(map(repr, difflib.get_close_matches(name, names, SHOWN, cutoff=0.0)))
