"""Compiled kernels on disk: a file per kernel, named by its key, and loaded only if its digest is right.

A file's name depends on everything that the kernel reaches (`kernel_key.py`), its argument types, the processor, and
the versions and switches of the compiler; numba's own `cache=True` misses edits of helpers in other files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np

from fpsim.runtime.kernel_key import UnknownPart, key_of
from fpsim.runtime.numba_private import PrivateNames
from fpsim.runtime.target import target

KEEP_DAYS = 30  # files are removed after this time without use
KEEP_BYTES = 2 << 30  # if all files have more, the least recently used ones are removed
TOUCH_AFTER = 86400  # seconds after which a use is noted
DIGEST_BYTES = 32
SUFFIX = ".kernel"
TABLE_SUFFIX = ".table"  # of tables of elementary functions, which are stored like kernels
SCHEME = 4  # version of the files' content
# Switches of numba that change machine code.
SWITCHES = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LLVM_REFPRUNE_PASS")


@lru_cache(maxsize=1)
def base_folder() -> Path | None:
    """Return the folder of compiled kernels, or None without a home directory; cached.

    It is `fpsim-kernels` in the folder that the environment variable FPSIM_CACHE_DIR names, else NUMBA_CACHE_DIR, else
    in the user's cache folder. A relative name counts from the current folder of the first call.
    """
    folder = os.environ.get("FPSIM_CACHE_DIR") or os.environ.get("NUMBA_CACHE_DIR")
    try:
        return (Path(folder).expanduser().absolute() if folder else _user_cache()) / "fpsim-kernels"
    except (RuntimeError, OSError):  # no home directory, as in some containers, or no current one
        return None


def _user_cache() -> Path:
    """Return the folder in which the operating system keeps caches of programs."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home())
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@lru_cache(maxsize=1)
def compiler() -> str:
    """Return text that identifies the compiler: versions, and the switches of numba.config that change machine code.

    The switches are those that were set when it was first called.
    """
    versions = (SCHEME, sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
    switches = [f"{name}={getattr(numba.config, name, None)}" for name in SWITCHES]
    return " ".join(map(str, (*versions, *switches)))


class KernelFiles:
    """The compiled versions of one function on disk, with the methods that numba's dispatchers call.

    A file holds the machine code for one list of argument types.

    Args:
      function: the plain Python function.
      dispatcher: its numba dispatcher.
      private: numba's private objects, as `numba_private.names` returns them.
    """

    def __init__(self, function: Callable[..., Any], dispatcher: Any, private: PrivateNames) -> None:
        self._function = function
        self._dispatcher = dispatcher
        self._private = private

    @cached_property
    def _key(self) -> str | None:
        """Hash of the function's code; None if the code cannot be described, so that nothing is stored."""
        try:
            return key_of(self._dispatcher)
        except UnknownPart:
            return None

    def path(self, signature: Any) -> Path | None:
        """Return the path of the file of the function compiled for some argument types.

        The result is None if nothing can be stored on disk, as there is no cache folder, or the function's code cannot
        be described by a key. signature: numba's types of the arguments.
        """
        folder = base_folder()
        if folder is None or self._key is None:
            return None
        for_what = (self._key, str(signature), target(), compiler())
        digest = hashlib.blake2b(repr(for_what).encode(), digest_size=16).hexdigest()
        name = re.sub(
            r"[^\w.]", "", f"{self._function.__module__}.{self._function.__qualname__}".removeprefix("fpsim.")
        )
        return folder / f"{name[:100]}-{digest}{SUFFIX}"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the compiled kernel for argument types, or None if its file is absent, damaged or not readable.

        signature: numba's types of the arguments. target_context: numba's description of the processor.
        """
        path = self.path(signature)
        if path is None:
            return None
        content = read_whole(path)
        if content is None:
            return None
        try:
            # numba's own cache first loads every implementation that it has, SciPy's linear algebra among them; machine
            # code needs none of them, and the compiler loads them when it next has something to compile
            self._private.runtime.initialize(target_context)
            return self._private.results.rebuild(self, target_context, pickle.loads(content))
        except Exception:  # complete, but not loadable here: treated as absent
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store a compiled kernel on disk for later processes; a full or read-only disk is ignored.

        Kernels that numba says cannot be loaded by other processes are not stored. signature: numba's types of the
        arguments; result: numba's compile result.
        """
        path = self.path(signature)
        if path is None or result.library.has_dynamic_globals or any(not loop.can_cache for loop in result.lifted):
            return
        with contextlib.suppress(Exception):  # a full or read-only disk costs time, not results
            write_whole(path, self._private.dumps(self._private.results.reduce(self, result)))
            tidy(path.parent)

    def flush(self) -> None:
        """Do nothing, as numba calls this to clear a cache: a damaged file is overwritten by `save_overload`."""

    @property
    def cache_path(self) -> str:
        """Folder of compiled kernels, as text, which numba reads for its statistics."""
        return str(base_folder())


def read_whole(path: Path) -> bytes | None:
    """Return the content of a file that `write_whole` wrote, or None if it is absent or was changed.

    Set the file's time of modification to now if it is more than a day old, as the time of its last use.
    """
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # of another user, or on a read-only disk
        if time.time() - path.stat().st_mtime > TOUCH_AFTER:
            os.utime(path)
    content = stored[DIGEST_BYTES:]
    return content if hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest() == stored[:DIGEST_BYTES] else None


def write_whole(path: Path, content: bytes) -> None:
    """Write the content, after a digest of it, to a temporary file, and rename that file to `path`.

    So no reader sees half a file. Missing folders are created.

    Raises:
      OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=path.stem[:60], suffix=".draft", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest() + content)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


@lru_cache(maxsize=1)
def tidy(folder: Path) -> None:
    """Remove files of kernels and tables that were not used for KEEP_DAYS (30), and folders of older versions.

    If the remaining files have more than KEEP_BYTES (2 GiB) together, those used longest ago are removed too. It runs
    once per process for a folder. Older versions of fpsim used a folder for each state of the sources, named by 20
    hexadecimal digits; folders unchanged for KEEP_DAYS are removed.
    """
    limit = time.time() - KEEP_DAYS * 86400
    kept = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process removed the file, or another user owns it
            used = path.stat()
            if path.suffix in (SUFFIX, TABLE_SUFFIX, ".draft"):
                if used.st_mtime < limit:
                    path.unlink()
                else:
                    kept.append((used.st_mtime, used.st_size, path))
            elif re.fullmatch(r"[0-9a-f]{20}", path.name) and used.st_mtime < limit:
                for pattern in ("*.nbi", "*.nbc"):
                    for file in path.glob(pattern):
                        file.unlink()
                path.rmdir()
    room = KEEP_BYTES
    for _, size, path in sorted(kept, reverse=True):
        room -= size
        if room < 0:
            with contextlib.suppress(OSError):
                path.unlink()
