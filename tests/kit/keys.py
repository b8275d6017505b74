"""Checks that the key of every compiled kernel covers all functions that numba reads to compile it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from unittest.mock import patch

from numba.core.bytecode import FunctionIdentity

from fpsim.runtime.compile import Kernel
from fpsim.runtime.kernel_key import UnknownPart, functions_of


@contextmanager
def keys_are_checked() -> Iterator[None]:
    """Inside the block, fail if a kernel is compiled from a function that its key doesn't cover.

    Kernels from the disk, and loops that an earlier kernel compiled, were checked when they were compiled.
    """
    seen: dict[int, list[Callable[..., Any]]] = defaultdict(list)  # by thread: kernels may be compiled at once
    identity, compiled = FunctionIdentity.__dict__["from_function"], Kernel.compile

    def from_function(cls: Any, function: Callable[..., Any]) -> Any:
        if (function.__module__ or "").startswith("fpsim."):
            seen[get_ident()].append(function)
        return identity.__func__(cls, function)

    def compile(kernel: Any, signature: Any) -> Any:
        read = seen[get_ident()]
        start = len(read)
        result = compiled(kernel, signature)
        missed = _missed(kernel, read[start:])
        assert not missed, f"the key of {kernel} lacks {', '.join(missed)}: an edit of these would be overlooked"
        return result

    with (
        patch.object(FunctionIdentity, "from_function", classmethod(from_function)),
        patch.object(Kernel, "compile", compile),
    ):
        yield


def _missed(kernel: Any, read: list[Callable[..., Any]]) -> list[str]:
    """Return names of functions that the key doesn't cover; none for a kernel without a key, which is not cached."""
    if not read:
        return []
    try:
        covered = {id(part) for part in functions_of(kernel)}
    except UnknownPart:
        return []
    return sorted({f"{part.__module__}.{part.__qualname__}" for part in read if id(part) not in covered})
