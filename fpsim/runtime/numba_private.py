"""The private names of numba by which compiled kernels are kept on disk; the package uses no others.

Where one of them is gone, or numba is newer than the versions that were tried, `names` warns once, and kernels are
compiled by plain `numba.njit` anew in every process: slower at first, with the same results.

Each was seen in numba 0.61, the oldest version that the package takes, and in 0.68, the newest of 2026-11:

| name in `numba.core` | why |
|---|---|
| `registry.CPUDispatcher` | base of fpsim's dispatchers: kernels defer Ctrl-C while compiling, helpers run as Python |
| `CPUDispatcher._cache` | is asked for compiled code, so it is set to a KernelFiles; `cache=True` misses closures |
| `caching.CompileResultCacheImpl` | converts a compiled kernel to parts that can be pickled, and back |
| `serialize.dumps` | pickles these parts |
| `runtime.rtsys` | prepares the process for machine code from the disk |
| `compiler_lock.global_compiler_lock` | is held while a process forks, as the child could never acquire it |
| `bytecode.FunctionIdentity._unique_ids` | numbers functions: see `own_numbers` |
| `codegen.CodeLibrary.has_dynamic_globals` | tells whether machine code holds addresses of its process |
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numba

from fpsim.runtime import forks

UNTRIED = (0, 70)  # the first version of numba in which the names may mean something else
SPACING = 1 << 24  # numbers for each process, more than it can compile functions


class PrivateNames(NamedTuple):
    """The private objects of numba that fpsim uses; PLACES says which field is which object of `numba.core`."""

    dispatcher: Any  # the class of compiled functions
    results: Any  # the class that takes compile results apart and puts them together
    dumps: Any  # the function that makes bytes of a taken-apart compile result
    runtime: Any  # prepares the process for machine code from the disk
    lock: Any  # of the compiler
    identity: Any  # the class that numbers functions
    library: Any  # the class that knows whether machine code holds addresses of its process


# field of PrivateNames -> the module and the name of an object, and its attributes that are used
PLACES = {
    "dispatcher": ("numba.core.registry", "CPUDispatcher", ("compile", "__call__")),
    "results": ("numba.core.caching", "CompileResultCacheImpl", ("reduce", "rebuild")),
    "dumps": ("numba.core.serialize", "dumps", ()),
    "runtime": ("numba.core.runtime", "rtsys", ("initialize",)),
    "lock": ("numba.core.compiler_lock", "global_compiler_lock", ("acquire", "release")),
    "identity": ("numba.core.bytecode", "FunctionIdentity", ("_unique_ids",)),
    "library": ("numba.core.codegen", "CodeLibrary", ("has_dynamic_globals",)),
}


@cache
def names() -> PrivateNames | None:
    """Return numba's private objects that fpsim uses; warn and return None if one is missing or numba is too new.

    Its first call, whose result is cached, also makes forks wait for numba's compiler lock.
    """
    try:
        private = _private_names()
    except (ImportError, AttributeError) as reason:
        warnings.warn(
            f"fpsim keeps no compiled kernels on disk and compiles them anew in every process, as {reason}. "
            f"Install numba>=0.61,<{'.'.join(map(str, UNTRIED))} to have them kept.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    if private.lock not in forks.LOCKS:
        forks.LOCKS.append(private.lock)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_numbers.cache_clear)
    return private


def _private_names() -> PrivateNames:
    """Return numba's private objects that fpsim uses.

    Raises:
      ImportError, AttributeError: an object is missing, or numba is too new; the text says which.
    """
    if version() >= UNTRIED:
        raise ImportError(f"it was not tried with numba {numba.__version__}")
    objects = {}
    for field, (module, name, attributes) in PLACES.items():
        objects[field] = getattr(importlib.import_module(module), name)
        _check(objects[field], attributes)
    _check(numba.njit(_check), ("_cache",))
    return PrivateNames(**objects)


def _check(item: Any, attributes: tuple[str, ...]) -> None:
    """Raise an AttributeError unless `item`, an object of numba, has all attributes with the given names."""
    for attribute in attributes:
        getattr(item, attribute)


def version() -> tuple[int, ...]:
    """Return numba's version as up to three numbers, such as (0, 68, 1)."""
    return tuple(map(int, re.findall(r"\d+", numba.__version__)[:3]))


@cache
def _numbers() -> Iterator[int]:
    """Return an endless counter from a random integer on; the integers number functions in this process's kernels."""
    return itertools.count(int.from_bytes(os.urandom(8), "little") * SPACING)


@contextmanager
def own_numbers(private: PrivateNames) -> Iterator[None]:
    """Return a context in which numba gives functions numbers that no other process uses; it holds the compiler's lock.

    numba names machine code by functions and their numbers, which begin at 1 in every process. Two kernels loaded from
    disk whose helpers had the same names would both call the helper that was loaded first, whatever its code.

    private: numba's private objects, as `names` returns them.
    """
    with private.lock:
        before = private.identity._unique_ids
        private.identity._unique_ids = _numbers()
        try:
            yield
        finally:
            private.identity._unique_ids = before
