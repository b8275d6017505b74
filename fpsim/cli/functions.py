"""Look-up of a user's function by a path MODULE:FUNCTION, and calls of it that may end the process."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import PurePath
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
    if module.endswith(".py") or "/" in module or os.sep in module:
        stem = PurePath(module).stem
        raise ValueError(
            f"{wanted}; got {path!r}. Write a file as the name of its module, without folder and .py, and call fpsim "
            f"in its folder: {stem}:{function}."
        )
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = importlib.import_module(module)
        for part in function.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as reason:
        raise ValueError(f"{wanted}; got {path!r}: {reason}.") from None
    except (Exception, SystemExit) as reason:  # a script that exits would end this command as if all were well
        said = " ".join(str(reason).split())
        raise ValueError(
            f"{wanted}; got {path!r}, and importing it raised {type(reason).__name__}: {said}."
        ) from reason
    if not callable(target):
        raise ValueError(f"{wanted}; got {path!r}, which is {type(target).__name__}.")
    return target  # type: ignore[no-any-return]


@contextlib.contextmanager
def exit_refused(path: str) -> Iterator[None]:
    """Raise a ValueError if the function at `path`, which the `with` block calls, ends the process (SystemExit).

    Otherwise the command itself would end, with the function's exit code; 0 would look like a successful check.
    """
    try:
        yield
    except SystemExit as end:
        raise ValueError(
            f"{path} raised SystemExit({end.code!r}) when it was called, which ends the process. Let it return, or "
            "raise an error of another class."
        ) from None
