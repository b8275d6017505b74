"""Error messages for invalid arguments: what is valid, what was passed, and which word may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

SHOWN = 3  # words that a message shows of a long list


def unknown(
    what: str, got: object, valid: Sequence[str], aliases: Mapping[str, str] | None = None, *, listing: str = "",
    others: str = "", meant: Sequence[str] = (),
) -> ValueError:  # fmt: skip
    """A ValueError that lists the valid words, or of very many the nearest ones, and says which one may be meant.

    Args:
      what: the name of the argument.
      got: the invalid value.
      valid: the words.
      aliases: further accepted spellings, with the valid word to suggest for each.
      listing: what lists the words where they are too many for a message.
      others: what else is accepted.
      meant: the words to suggest where that is known.

    Example:
      >>> from fpsim.errors import unknown
      >>> unknown("overflow", "saturat", ["nonfinite", "saturate"])
      ValueError("overflow must be one of nonfinite, saturate; got 'saturat'. Did you mean 'saturate'?")
      >>> print(unknown("unit", "c7", [f"a{i}" for i in range(50)] + ["c17"], listing="fp.units()"))
      unit must be one of the 51 that fp.units() lists, such as c17, a7, a47; got 'c7'. Did you mean 'c17'?
    """
    words = {**(aliases or {}), **{word: word for word in valid}}
    key = str(got).lower()
    near = [word for word in words if key and (word.startswith(key) or (len(word) > 3 and key.startswith(word)))]
    near = near or difflib.get_close_matches(key, list(words), n=1)
    meant = meant or [words[word] for word in near[:1]]
    hint = f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    if listing:
        closest = difflib.get_close_matches(key, list(words), len(words), cutoff=0.0) if got else []
        shown = list(dict.fromkeys([*meant, *(words[word] for word in (*near, *closest)), *valid]))[:SHOWN]
        one_of = f"the {len(valid)} that {listing} lists, such as {', '.join(shown)}"
    else:
        one_of = ", ".join(valid)
    return ValueError(f"{what} must be one of {one_of}{others and f', {others}'}; got {got!r}.{hint}")


def install(extra: str) -> str:
    """How to get the packages of an extra; fpsim is on no index, so its checkout says which ones.

    Example:
      >>> from fpsim.errors import install
      >>> install("plot")
      "pip install -e '.[plot]' in the checkout of fpsim"
    """
    return f"pip install -e '.[{extra}]' in the checkout of fpsim"
