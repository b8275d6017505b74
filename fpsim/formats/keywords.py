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
    """Show keywords in the signature of a function that takes them as `**keywords`, and a text under its docstring.

    Args:
      kind: the TypedDict that types them.
      defaults: those that the function takes, in the order of the signature.
      text: what is added to the docstring.
      last: whether they follow the function's own keywords, or come before these.
    """

    def show(function: Function) -> Function:
        signature = inspect.signature(function)
        listed = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_type_text(kind.__annotations__[name])
            )
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


def _type_text(annotation: Any) -> Any:
    """Return the source text of an annotation that is written as text; return any other annotation unchanged."""
    return getattr(annotation, "__forward_arg__", annotation)


def check_keywords(function: Callable[..., Any], keywords: Iterable[str], shared: Collection[str]) -> None:
    """Raise an error unless keywords are among those that a function shares with others.

    Raises:
      TypeError: an unknown keyword; the message lists all that the function has, and suggests the nearest.
    """
    for word in keywords:
        if word not in shared:
            shown = inspect.signature(function).parameters.values()
            valid = [parameter.name for parameter in shown if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
            raise unknown_keyword(function.__name__, word, valid)


def given_keywords(
    function: Callable[..., Any], keywords: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keywords that a function was given and that differ from their defaults.

    Raises:
      TypeError: an unknown keyword, as for `check_keywords`.
    """
    try:
        return {name: value for name, value in keywords.items() if value is not defaults[name]}
    except KeyError:
        check_keywords(function, keywords, defaults)
        raise


def unknown_keyword(name: str, word: str, valid: Sequence[str]) -> TypeError:
    """Return a TypeError that lists the keywords of a function and suggests the one nearest to an unknown one."""
    near = difflib.get_close_matches(word, valid, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{name} takes the keywords {', '.join(valid)}; got {shown(word)}.{hint}")
