"""Named tuples from arrays: layouts are passed to kernels as arrays, and are held in registers there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fpsim.runtime.compile import scalar

Record = TypeVar("Record", bound=tuple[Any, ...])


def fields_of(kind: type[Record]) -> Callable[[Any], Record]:
    """Return the scalar function that reads a named tuple's fields from the start of an array, on CPU and CUDA."""
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    # numba builds no tuple from an array, so the expression is written out, as namedtuple itself writes its __new__
    read = eval(f"lambda kind: lambda p: kind({', '.join(f'p[{i}]' for i in range(len(names)))})")(kind)
    read.__qualname__ = f"fields_of.{kind.__name__}"
    reader: Callable[[Any], Record] = scalar(read)
    return reader
