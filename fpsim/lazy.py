"""Lazy imports: public names and modules with compiled loops are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from fpsim.errors import nearest
from fpsim.interrupts import interrupts_wait


def imported(module: str) -> ModuleType:
    """Import a module by its full name and return it; Ctrl-C waits until a first import ends.

    Python does not repair packages whose import was interrupted: numba would lack submodules from then on.

    Example:
      >>> from fpsim.lazy import imported
      >>> imported("fpsim.files").__name__
      'fpsim.files'
    """
    if module in sys.modules:
        return importlib.import_module(module)  # which waits for another thread that imports it
    with interrupts_wait():
        return importlib.import_module(module)


def deferred(module: str) -> Callable[[], Any]:
    """Return a function that imports a module at its first call and returns it: for modules that import numba.

    Later calls are several times faster than an import statement inside a function.

    Example:
      >>> from fpsim.lazy import deferred
      >>> pipelines = deferred("fpsim.casts.pipelines")
      >>> pipelines().__name__
      'fpsim.casts.pipelines'
    """
    # tests/test_architecture.py treats the names that are passed here as imports
    return cache(lambda: imported(module))


def attach(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = (), twin: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package whose names are imported on first use.

    Args:
      package: the package's `__name__`.
      homes: {module: the names that it defines}; modules are named relative to the package, or in full
        ("fpsim.formats.named").
      modules: modules and packages inside it that are public names themselves.
      twin: for a package of GPU functions, the package of the same functions on the CPU: an unknown name that `twin`
        has raises an error that points to it. None for no such package.

    Returns:
      The two functions, and the sorted list of names.

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
            return imported(f"{package}.{name}")
        if name not in module_of:
            if twin is not None and name in imported(twin).__all__:
                more = f". Use {twin}.{name}; what {twin} computes, it computes on the CPU."
                raise no_attribute(package, name, (), more=more)
            raise no_attribute(package, name, names)
        module = module_of[name]
        home = imported(module if module.startswith("fpsim.") else f"{package}.{module}")
        return getattr(home, name)

    return find, lambda: list(names), names


def no_attribute(
    module: str, name: str, names: Iterable[str], meant: Mapping[str, str] | None = None, more: str = ""
) -> AttributeError:
    """Return the AttributeError for a name that a module does not have, with a suggestion.

    Args:
      module: the module's name.
      name: the missing name.
      names: the names that the module has.
      meant: {further word, in lower case: the name to suggest for it}.
      more: text to append.

    Example:
      >>> from fpsim.lazy import no_attribute
      >>> no_attribute("fpsim", "quantise", ["quantize", "encode"])
      AttributeError("module 'fpsim' has no attribute 'quantise'. Did you mean 'quantize'?")
    """
    hint = ""
    if not name.startswith("_"):  # names that Python and tools read
        words = {**(meant or {}), **{known.lower(): known for known in names}}
        near = nearest(name.lower(), words)
        hint = f". Did you mean {words[near]!r}?" if near else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}{more}")


def face(
    module: str, names: Sequence[str], meant: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return functions `__getattr__` and `__dir__` for a module that show only its public `names`.

    Python calls `__getattr__` for unknown attributes; it raises an AttributeError that suggests a similar name. module:
    the module's name. meant: {further word, in lower case: the name to suggest for it}.

    Example:
      >>> from fpsim.lazy import face
      >>> _, names = face("fpsim.testing", ["assert_bits_equal"])
      >>> names()
      ['assert_bits_equal']
    """

    def find(name: str) -> Any:
        raise no_attribute(module, name, names, meant)

    return find, lambda: list(names)


def public(package: str = "fpsim") -> Any:
    """Import a package of fpsim by its name and return it; "fpsim" is the package itself.

    It is for code of fpsim that calls public functions as users do, such as experiments and benchmarks.

    Example:
      >>> from fpsim.lazy import public
      >>> public().E4M3.name
      'E4M3'
    """
    return imported(package)
