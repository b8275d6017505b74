"""Error messages for invalid arguments: what is valid, what was passed, and which name may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from numbers import Integral, Real
from typing import Any

SHOWN = 3  # words that a message shows of a long list
LONGEST = 100  # characters of a value in a message
MOST_BITS = 8192  # of an integer argument; Python writes integers of up to 14,284 bits


def shown(value: object) -> str:
    """Return a value as messages show it: its repr if short, else an array's dtype and shape or the repr's beginning.

    Example:
      >>> from fpsim.errors import shown
      >>> print(shown("e4m2"), shown(np.zeros((40, 50))), shown(10**200)[-10:])
      'e4m2' an array of float64, shape (40, 50) 0000000...
    """
    try:
        text = repr(value)
    except Exception:  # any error of a repr, as the message is about something else
        if isinstance(value, int):  # of more digits than Python converts
            return f"an integer of {value.bit_length()} bits"
        return f"something of type {type(value).__name__}, which cannot be shown"
    if "\n" not in text and len(text) <= LONGEST:
        return text
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", getattr(value, "fmt", None))
    if isinstance(shape, tuple) and dtype is not None:
        return f"an array of {dtype}, shape {tuple(shape)}"
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of `words` most similar to `word`; ties go to the longest common prefix.

    cutoff: the least similarity, 0 to 1. None is returned if no word is that similar.

    Example:
      >>> from fpsim.errors import nearest
      >>> nearest("e4m2", ["e5m2", "e4m3"]), nearest("xyz", ["e5m2", "e4m3"])
      ('e4m3', None)
    """
    near = difflib.get_close_matches(word, list(words), n=8, cutoff=cutoff)
    likeness = difflib.SequenceMatcher(None, "", word)

    def rank(candidate: str) -> tuple[float, int]:
        likeness.set_seq1(candidate)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(candidate, word, strict=False))
        return likeness.ratio(), len(list(same))

    return max(near, key=rank) if near else None


def is_integer(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer (bools and arrays of one element are not)."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def require_integer(name: str, value: object, lowest: int | None = None) -> None:
    """Raise a TypeError unless a value is an integer (bools are not), and a ValueError if it is below `lowest`.

    A ValueError is also raised for integers of more than `MOST_BITS` bits: Python refuses to write very long ones, so
    messages and names that contain them could not be made. name: the argument's name, for the message. lowest: None for
    no limit.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):  # as is_integer, in words that type checkers read
        raise TypeError(f"{name} must be an integer; got {shown(value)}.")
    if lowest is not None and int(value) < lowest:
        raise ValueError(f"{name} must be an integer >= {lowest}; got {shown(value)}.")
    if int(value).bit_length() > MOST_BITS:
        raise ValueError(f"{name} must be an integer of at most {MOST_BITS} bits; got {shown(value)}.")


def integer_fields(record: object, *names: str, lowest: int | None = None) -> None:
    """Raise an error, as `require_integer` does, unless fields of a dataclass are integers, and make them Python's.

    NumPy's integers of few bits would overflow in later arithmetic. record: the object, which may be frozen. names: the
    fields. lowest: the smallest integer that they may be; None for no limit.
    """
    for name in names:
        require_integer(name, getattr(record, name), lowest)
        object.__setattr__(record, name, int(getattr(record, name)))


def require_minutes(value: object) -> None:
    """Raise a TypeError or ValueError unless the argument `minutes` of a command is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"minutes must be a number >= 0; got {shown(value)}.")
    if value < 0 or not value < 1e300:  # nor NaN, nor an integer that float64 cannot hold
        raise ValueError(f"minutes must be a finite number >= 0; got {shown(value)}.")


def require_kind(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise a TypeError unless a value is an instance of a class.

    name: the argument's name, for the message. kind: the class, or several. wanted: the message's words for what is
    accepted, such as "True or False".
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {wanted}; got {shown(value)}.")


def texts_of(name: str, value: object, wanted: str = "a text or several") -> tuple[str, ...]:
    """Return one str or several, in a list or another sequence, as a tuple; raise a TypeError for anything else.

    name: the argument's name, for the message. wanted: the message's words for what is accepted.
    """
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{name} must be {wanted}; got {shown(value)}.")
    return tuple(texts)


def require_same(
    nouns: str, first: object, second: object, names: Iterable[str], text: Callable[[Any], str] = str
) -> None:
    """Raise a ValueError unless two objects that are to be merged have equal values of the attributes `names`.

    nouns: what the objects are, for the message, such as "reports". text: function that returns an attribute's value as
    the message shows it. The message calls the attribute "fmt" "format".
    """
    for name in names:
        mine, others = getattr(first, name), getattr(second, name)
        if mine != others:
            word = "format" if name == "fmt" else name
            raise ValueError(f"{nouns} to merge must have the same {word}; got {text(mine)} and {text(others)}.")


def require_word(name: str, value: object, words: Sequence[str], listing: str = "") -> None:
    """Raise a ValueError unless a value is one of `words`.

    name: the argument's name, for the message. listing: the function or page that lists the words, if they are too many
    for a message.
    """
    if not isinstance(value, str) or value not in words:
        raise unknown(name, value, words, listing=listing)


def unknown(
    argument: str, got: object, valid: Sequence[str], aliases: Mapping[str, str] | None = None, *, listing: str = "",
    others: str = "", meant: Sequence[str] = (),
) -> ValueError:  # fmt: skip
    """Return the ValueError for an invalid name: it lists the valid names, or the nearest of many, and suggests one.

    Args:
      argument: the name of the argument that has the invalid value.
      got: the invalid value.
      valid: the valid names.
      aliases: further accepted spellings, in lower case, with the valid name to suggest for each.
      listing: the function or page that lists the valid names, if they are too many for a message; "" to list them all.
      others: what else is accepted, as text.
      meant: the valid names to suggest, if the caller knows them; empty for the most similar one.

    Example:
      >>> from fpsim.errors import unknown
      >>> unknown("overflow", "saturat", ["nonfinite", "saturate"])
      ValueError("overflow must be one of nonfinite, saturate; got 'saturat'. Did you mean 'saturate'?")
      >>> print(unknown("unit", "c7", [f"a{i}" for i in range(50)] + ["c17"], listing="fp.units()"))
      unit must be one of the 51 that fp.units() lists, such as c17, a7, a47; got 'c7'. Did you mean 'c17'?
    """
    words = {**(aliases or {}), **{word.lower(): word for word in valid}}  # keys in lower case, as they are looked up
    key = got.lower() if isinstance(got, str) else shown(got).lower()
    near = [word for word in words if key and (word.startswith(key) or (len(word) > 3 and key.startswith(word)))]
    near.sort(key=lambda word: abs(len(word) - len(key)))
    best = None if near else nearest(key, words)
    near = near if best is None else [best]
    meant = meant or [words[word] for word in near[:1]]
    hint = f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    if listing:
        closest = difflib.get_close_matches(key, list(words), len(words), cutoff=0.0) if key else []
        nearest_first = dict.fromkeys([*meant, *(words[word] for word in (*near, *closest)), *valid])
        listed = [word for word in nearest_first if word in valid][:SHOWN]
        one_of = f"the {len(valid)} that {listing} lists, such as {', '.join(listed)}"
    else:
        one_of = ", ".join(valid)
    return ValueError(f"{argument} must be one of {one_of}{others and f', {others}'}; got {shown(got)}.{hint}")


def install(extra: str) -> str:
    """Return the command, as text for errors, that installs the packages of one of fpsim's extras, such as "plot".

    Example:
      >>> from fpsim.errors import install
      >>> install("plot")
      "pip install -e '.[plot]' in the checkout of fpsim"
    """
    return f"pip install -e '.[{extra}]' in the checkout of fpsim"
