"""Arguments that are several of something."""

from __future__ import annotations

from typing import Any


def listed(values: Any) -> list[Any] | None:
    """The elements of any iterable but a text, or None for what has none.

    Example:
      >>> from fpsim.analysis.measures.several import listed
      >>> listed(range(2)), listed("ab"), listed(np.array(3))
      ([0, 1], None, None)
    """
    if isinstance(values, (str, bytes)):
        return None
    try:
        return list(values)
    except TypeError:  # an array of no dimensions has the method of iterables, and no elements
        return None
