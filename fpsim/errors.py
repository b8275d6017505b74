"""Messages for bad input: what was wanted, what came, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence


def unknown(what: str, got: object, valid: Sequence[str], aliases: Mapping[str, str] | None = None) -> ValueError:
    """A ValueError that lists the valid words and the nearest match.

    `aliases` maps further accepted spellings to the valid word to suggest for them.

    Example:
      >>> from fpsim.errors import unknown
      >>> unknown("overflow", "saturat", ["nonfinite", "saturate"])
      ValueError("overflow must be one of nonfinite, saturate; got 'saturat'. Did you mean 'saturate'?")
    """
    meant = {**(aliases or {}), **{word: word for word in valid}}
    key = str(got).lower()
    near = [word for word in meant if key and (word.startswith(key) or (len(word) > 3 and key.startswith(word)))]
    near = near or difflib.get_close_matches(key, list(meant), n=1)
    hint = f" Did you mean {meant[near[0]]!r}?" if near else ""
    return ValueError(f"{what} must be one of {', '.join(valid)}; got {got!r}.{hint}")
