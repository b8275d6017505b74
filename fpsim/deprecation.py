"""Support for old names of arguments, functions and modules, which still work.

Old names of arguments and functions raise a DeprecationWarning, and are removed in the next release.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str, stacklevel: int = 2) -> None:
    """Issue a DeprecationWarning that the name `old` is replaced by `new`.

    Args:
      old: the name in use, such as "fpsim.train.probe".
      new: the name to use instead.
      stacklevel: as in warnings.warn, counted from the function that calls this one.
    """
    message = f"{old} is now called {new}; the old name will be removed in the next release. Use {new}."
    warnings.warn(message, DeprecationWarning, stacklevel + 1)


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets a function accept keyword arguments by their old names too, with a warning.

    Args:
      names: {old name of an argument: its new name}.

    Raises:
      TypeError: when called, both names of one argument are given.

    Example:
      >>> from fpsim.deprecation import renamed_arguments
      >>> @renamed_arguments(out_format="out_fmt")
      ... def product(a, out_fmt=None):
      ...     return a, out_fmt
      >>> product(1, out_fmt="bf16")
      (1, 'bf16')
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> R:
            for old in [name for name in names if name in kwargs]:
                new = names[old]
                if new in kwargs:
                    raise TypeError(f"{new} and its old name {old} must not both be given. Leave out {old}.")
                warn_renamed(f"{old}=", f"{new}=", stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


class FormerModule(ModuleType):
    """A module under its former name, to which pickled objects refer; its attributes are those of the renamed module.

    former: the full former name. address: the module's full name today.
    """

    def __init__(self, former: str, address: str) -> None:
        super().__init__(former, f"The former address of `{address}`.")
        self._address = address

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # attributes that Python and tools read of every module
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(self._address), name)


def former_modules(package: str, addresses: dict[str, str]) -> None:
    """Make modules of a package importable by their former names.

    addresses: {former name of a module in the package: full name of the module today}.

    Example:
      >>> from fpsim.deprecation import former_modules
      >>> former_modules("fpsim.train", {"parts": "fpsim.recipes.parts"})
      >>> from fpsim.train.parts import Override
      >>> Override.__module__
      'fpsim.recipes.parts'
    """
    for name, address in addresses.items():
        module = sys.modules[f"{package}.{name}"] = FormerModule(f"{package}.{name}", address)
        setattr(importlib.import_module(package), name, module)  # as an import statement of the former module did
