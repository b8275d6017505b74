"""The function that a text MODULE:FUNCTION names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any


def function_at(path: str, name: str = "function", such_as: str = "numpy:sum") -> Callable[..., Any]:
    """The function of a path MODULE:FUNCTION, whose module may lie in the working folder.

    Args:
      path: such as "numpy:sum"; FUNCTION may be dotted.
      name: what messages call it.
      such_as: the path that they give as an example.

    Raises:
      ValueError: no such module or function, a module that fails as it is imported, or something that cannot be called.

    Example:
      >>> from fpsim.cli.functions import function_at
      >>> function_at("math:sqrt")(16)
      4.0
    """
    module, _, function = path.partition(":")
    wanted = f"{name} must be MODULE:FUNCTION, such as {such_as}"
    if not module or not function:
        raise ValueError(f"{wanted}; got {path!r}.")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as reason:
        raise ValueError(f"{wanted}; got {path!r}: {reason}.") from None
    except Exception as reason:
        said = " ".join(str(reason).split())
        raise ValueError(
            f"{wanted}; got {path!r}, and importing it raised {type(reason).__name__}: {said}."
        ) from reason
    if not callable(found):
        raise ValueError(f"{wanted}; got {path!r}, which is {type(found).__name__}.")
    return found  # type: ignore[no-any-return]
