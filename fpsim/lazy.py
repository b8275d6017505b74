"""Lazy imports: the names of a package load the module that defines them when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def attach(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package whose names load on first use.

    Args:
      package: its `__name__`.
      homes: for each module, named from the package, the names that it defines.
      modules: modules and packages in it that are names themselves.

    Returns:
      The two functions, and the sorted names.

    Example:
      >>> from fpsim.lazy import attach
      >>> find, _, names = attach("fpsim.formats", {"named": ["E4M3"]}, modules=["policies"])
      >>> names, find("E4M3").bits
      (['E4M3', 'policies'], 8)
    """
    module_of = {name: module for module, names in homes.items() for name in names}
    names = sorted([*module_of, *modules])

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home: ModuleType = importlib.import_module(f"{package}.{module_of[name]}")
        return getattr(home, name)

    return find, lambda: list(names), names


def public(package: str = "fpsim") -> Any:
    """The public package, for code inside it that calls functions as users do: experiments and benchmarks.

    Example:
      >>> from fpsim.lazy import public
      >>> public().E4M3.name
      'E4M3'
    """
    return importlib.import_module(package)
