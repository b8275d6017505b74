"""Functions under test: their names in reports, their exceptions as text, and the error for one that misbehaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fpsim.arrays import Array
from fpsim.errors import shown


class FunctionMisbehaved(Exception):
    """A tested function broke a rule of calls: it raised, wrote into its input, or returned a wrong shape or type.

    Attributes:
      rule: name of the rule, such as "runs" or "shape".
      sentence: the sentence on what the function did, which is also the exception's text.
      inputs: the array that it was called with, or None.
    """

    def __init__(self, rule: str, sentence: str, inputs: Array | None = None) -> None:
        super().__init__(sentence)
        self.rule, self.sentence, self.inputs = rule, sentence, inputs


def require_function(fn: object) -> None:
    """Raise a TypeError unless `fn`, a quantizer to be tested, is callable."""
    if not callable(fn):
        raise TypeError(f"fn must be a function of an array that returns values or codes; got {shown(fn)}.")


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name that reports use for a function: its `__name__`, else its class; "fn" for a lambda."""
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return "fn" if name == "<lambda>" else str(name)


def error_in_words(error: Exception, most: int = 120) -> str:
    """Return an exception as one line: its class, and its message cut to at most `most` characters."""
    text = " ".join(str(error).split())
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return f"{type(error).__name__}({text!r})"
