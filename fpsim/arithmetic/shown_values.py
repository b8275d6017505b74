"""Arrays of values as text, laid out as by NumPy, in the fewest digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array


def shown_values(values: Array, suffix: str) -> str:
    """Return an array's values as text, laid out as by NumPy, each in the fewest digits that identify it in its dtype.

    suffix: text that will follow, for which the last line leaves space. The lines are laid out for text after
    "fp.array(".
    """
    if not values.ndim:
        return _text(values[()])
    lengths = [0]

    def measured(value: Any) -> str:
        lengths.append(len(_text(value)))
        return _text(value)

    if values.ndim > 1:  # columns line up
        np.array2string(values, formatter={"float_kind": measured})
    width = max(lengths)
    return np.array2string(
        values,
        separator=", ",
        prefix="fp.array(",
        suffix=suffix,
        formatter={"float_kind": lambda value: _text(value).rjust(width)},
    )


def _text(value: Any) -> str:
    """Return a float as text, without a final ".0" unless it is -0.0."""
    text = str(value)
    return text if text == "-0.0" else text.removesuffix(".0")  # Python reads -0 as 0
