"""JSON that keeps every bit of floats: finite ones as JSON numbers, Inf and NaN as their bit patterns."""

from __future__ import annotations

import math
import struct
from typing import Any

from fpsim.errors import shown

FLOAT = "float64"  # the key of a pattern


def to_json(value: Any, name: str = "value") -> Any:
    """Return a value in a form that `json.dumps` accepts and `from_json` restores, with every float exact.

    Args:
      value: None, a bool, an integer, a float, a str, or lists and dicts of these with str keys.
      name: the value's name in error messages.
    Raises:
      TypeError: the value is or holds something else, such as a tuple, which `from_json` would return as a list.
      ValueError: a dict has "float64" as its only key, which `from_json` would read as a float.

    Example:
      >>> from fpsim.exact_json import from_json, to_json
      >>> to_json({"loss": [0.1, float("-inf")]})
      {'loss': [0.1, {'float64': 'fff0000000000000'}]}
      >>> from_json(to_json({"loss": [0.1, float("-inf")]}))
      {'loss': [0.1, -inf]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else {FLOAT: struct.pack(">d", value).hex()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, list):
        return [to_json(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise TypeError(
            f"{name} must be None, a truth value, a number of Python, a text, or lists and dicts of these with texts "
            f"as keys; got {shown(value)}."
        )
    if list(value) == [FLOAT]:
        raise ValueError(f"{name} must not have {FLOAT!r} as its one key; got {shown(value)}. Name it otherwise.")
    return {key: to_json(item, f"{name}[{key!r}]") for key, item in value.items()}


def from_json(value: Any) -> Any:
    """Return the original value from the result of `to_json`.

    value: the result of `to_json`, which may have been written as JSON and read again.

    Raises:
      ValueError: the digits of a float are damaged.
    """
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if list(value) == [FLOAT]:
        try:
            return struct.unpack(">d", bytes.fromhex(value[FLOAT]))[0]
        except (TypeError, ValueError, struct.error):
            raise ValueError(
                f"the file is damaged: a float must have 16 hexadecimal digits; got {shown(value[FLOAT])}."
            ) from None
    return {key: from_json(item) for key, item in value.items()}
