"""Look-up of a user's function by a path MODULE:FUNCTION."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any


def function_at(path: str, name: str = "function", such_as: str = "numpy:sum") -> Callable[..., Any]:
    """Return the function at a path MODULE:FUNCTION, whose module may be in the current folder.

    Args:
      path: such as "numpy:sum"; FUNCTION may be dotted.
      name: the argument's name, for error messages.
      such_as: an example of a path, for error messages.

    Raises:
      ValueError: there is no such module or function, its import raises an error, or it is not callable.

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
        target: Any = importlib.import_module(module)
        for part in function.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as reason:
        raise ValueError(f"{wanted}; got {path!r}: {reason}.") from None
    except Exception as reason:
        said = " ".join(str(reason).split())
        raise ValueError(
            f"{wanted}; got {path!r}, and importing it raised {type(reason).__name__}: {said}."
        ) from reason
    if not callable(target):
        raise ValueError(f"{wanted}; got {path!r}, which is {type(target).__name__}.")
    return target  # type: ignore[no-any-return]
