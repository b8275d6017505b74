"""Conversion of arguments that may be any iterable."""

from __future__ import annotations

from typing import Any


def as_list(values: Any) -> list[Any] | None:
    """Return the elements of an iterable as a list; None for strings, bytes and objects that are not iterable.

    Example:
      >>> from fpsim.analysis.measures.iterables import as_list
      >>> as_list(range(2)), as_list("ab"), as_list(np.array(3))
      ([0, 1], None, None)
    """
    if isinstance(values, (str, bytes)):
        return None
    try:
        return list(values)
    except TypeError:  # also raised by an array without dimensions, although it has __iter__
        return None
