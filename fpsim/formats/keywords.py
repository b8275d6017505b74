"""Keywords that many functions share: shown in each signature and docstring, and checked by one function."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fpsim.errors import shown

Function = TypeVar("Function", bound=Callable[..., Any])


def with_keywords(
    kind: type[Any], defaults: Mapping[str, Any], text: str = "", last: bool = False
) -> Callable[[Function], Function]:
    """Return a decorator that lists keywords in the signature of a function that takes them as `**keywords`.

    The decorator changes the function's `__signature__` and `__doc__` in place and returns the function.

    Args:
      kind: the TypedDict class that declares the types of the keywords.
      defaults: {keyword: default}, in the order of the signature.
      text: text to append to the docstring.
      last: True lists them after the function's own keywords, False before.
    """

    # of annotations that are written as text, the text
    types = {name: getattr(hint, "__forward_arg__", hint) for name, hint in kind.__annotations__.items()}

    def show(function: Function) -> Function:
        signature = inspect.signature(function)
        listed = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
            for name, default in defaults.items()
        ]
        first = [one for one in listed if last or one.kind is not inspect.Parameter.KEYWORD_ONLY]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*first, *shared, *listed[len(first) :]]
        )
        if text:
            function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n{text}"
        return function

    return show


def check_keywords(function: Callable[..., Any], keywords: Iterable[str], shared: Collection[str]) -> None:
    """Raise a TypeError unless all `keywords` of a call are in `shared`, those that the function takes as `**keywords`.

    function: the public function that was called, for the message.

    Raises:
      TypeError: a keyword is unknown; the message lists all keywords of the function, and suggests the nearest.
    """
    for word in keywords:
        if word not in shared:
            shown = inspect.signature(function).parameters.values()
            valid = [parameter.name for parameter in shown if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
            raise unknown_keyword(function.__name__, word, valid)


def given_keywords(
    function: Callable[..., Any], keywords: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return those `keywords` of a call whose values are other objects than the ones in `defaults`.

    function: the public function that was called, for the message. defaults: all keywords that it takes as
    `**keywords`, with their defaults.

    Raises:
      TypeError: a keyword is not among the defaults; the message lists all that the function has.
    """
    try:
        return {name: value for name, value in keywords.items() if value is not defaults[name]}
    except KeyError:
        check_keywords(function, keywords, defaults)
        raise


def unknown_keyword(name: str, word: str, valid: Sequence[str]) -> TypeError:
    """Return the TypeError for an unknown keyword `word` of the function `name`, with its `valid` keywords."""
    near = difflib.get_close_matches(word, valid, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{name} takes the keywords {', '.join(valid)}; got {shown(word)}.{hint}")
