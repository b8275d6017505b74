"""Numba options in one place, and a disk cache that an edited source file can never leave stale.

numba's own `cache=True` looks only at the file that holds a function, so an edited helper in another file goes
unnoticed. Here the digest of every source file of the package names the cache folder: a new source is a new folder.
A process that outlives an edit may hold a mixture of old and new functions, so it caches nothing that it loads then.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching

from fpsim.runtime import sources

Function = TypeVar("Function", bound=Callable[..., Any])

KEEP_DAYS = 30  # folders of older sources go after this time without use


def _writable(folder: Path) -> bool:
    """Whether a file can be made in a folder, which is created on the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Where compiled kernels of these sources live: FPSIM_CACHE_DIR, NUMBA_CACHE_DIR, the user's cache, or nowhere."""
    chosen = os.environ.get("FPSIM_CACHE_DIR") or os.environ.get("NUMBA_CACHE_DIR")
    try:
        base = (Path(chosen) if chosen else _user_cache()) / "fpsim-kernels"
    except RuntimeError:  # no home directory, as in some containers
        return None
    if not sources.AT_IMPORT:
        return None  # no source file to tell versions apart by
    folder = base / sources.AT_IMPORT
    if not _writable(folder):
        return None
    os.utime(folder)
    _forget_old(base)
    return folder


def _user_cache() -> Path:
    """The folder that the system has for such things."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home())
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _forget_old(base: Path) -> None:
    """Remove the kernels of other sources that nobody used for KEEP_DAYS, and nothing else."""
    limit = time.time() - KEEP_DAYS * 86400
    for folder in base.iterdir():
        with contextlib.suppress(OSError):  # another process was faster, or it is not ours
            if re.fullmatch(r"[0-9a-f]{20}", folder.name) and folder.stat().st_mtime < limit:
                for pattern in ("*.nbi", "*.nbc"):
                    for file in folder.glob(pattern):
                        file.unlink()
                folder.rmdir()


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    """Tells numba where the cache of a function lies; the folder's name already pins the sources."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._folder = folder
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return sources.AT_IMPORT

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Impl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """numba's serialisation of compiled functions, with our locator."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function, folder)
        name = f"{function.__module__}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))


class _Files(caching.IndexDataCacheFile):  # type: ignore[misc]
    """A file per compiled kernel, named after its key.

    numba numbers these files and keeps an index. Two processes that compile different kernels of one function at the
    same time may then give both the same number, and the index of one leads to the machine code of the other.
    """

    def _name(self, key: Any) -> str:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
        return f"{self._index_name.removesuffix('.nbi')}.{digest}.nbc"

    def save(self, key: Any, data: Any) -> None:
        self._save_data(self._name(key), (repr(key), data))

    def load(self, key: Any) -> Any:
        try:
            stored, data = self._load_data(self._name(key))
        except FileNotFoundError:
            return None
        return data if stored == repr(key) else None

    def flush(self) -> None:
        """Nothing to reset: a damaged file is replaced by the kernel that is compiled in its stead."""


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """The disk cache of one function, its captured values part of the key."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._name = repr(function)
        self._py_func = function
        self._impl = _Impl(function, folder)
        self._cache_path = self._impl.locator.get_cache_path()
        self._cache_file = _Files(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )
        self.enable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The cached kernel, or None: a damaged file is as good as none."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel for later processes where there is room for it."""
        with contextlib.suppress(Exception):
            super().save_overload(sig, data)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Signature, processor and captured values: numba's own key misses on captured dispatchers."""
        cells = self._py_func.__closure__ or ()
        captured = tuple(_stable(cell.cell_contents) for cell in cells)
        return (sig, codegen.magic_tuple(), captured)


def _stable(value: Any) -> str:
    """A name for a captured value that is the same in every process."""
    inner = getattr(value, "py_func", value)
    if callable(inner) and hasattr(inner, "__closure__"):
        return f"{inner.__module__}.{inner.__qualname__}"  # which tells what it captured: see _named
    return repr(value)


def _named(function: Function) -> Function:
    """The function under a name that tells what it captured.

    numba names machine code after the function and a number that counts compilations in this process. Code from the
    disk cache brings the numbers of another process, so two variants of one loop could meet under one name, and calls
    of the one would reach the other.
    """
    cells = function.__closure__ or ()
    if cells:
        captured = ",".join(_stable(cell.cell_contents) for cell in cells)
        digest = hashlib.sha256(captured.encode()).hexdigest()[:16]
        function.__qualname__ = f"{function.__qualname__}_{digest}"
    return function


def scalar(function: Function) -> Function:
    """Compile a scalar function of the core; it is inlined where it is called, on the CPU and on CUDA."""
    compiled: Function = numba.njit(inline="always")(_named(function))
    return compiled


def shared(function: Function) -> Function:
    """A scalar function of the core, compiled once for all CPU kernels that call it: LLVM inlines it, not numba.

    Long functions take seconds to compile where numba inlines them; the machine code is the same.
    """
    plain = getattr(function, "py_func", None) or _named(function)
    compiled: Function = numba.njit(error_model="numpy", forceinline=True)(plain)
    return compiled


def kernel(function: Function) -> Function:
    """Compile a loop over arrays: no GIL, no fast-math, cached on disk under the digest of the sources."""
    compiled = numba.njit(nogil=True, error_model="numpy")(_named(function))
    if not numba.config.DISABLE_JIT and not sources.edited():
        folder = cache_folder()
        if folder is not None:
            compiled._cache = _Cache(function, folder)
    return compiled  # type: ignore[no-any-return]
