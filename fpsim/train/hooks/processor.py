"""The state of the processor in a step: one thread of torch, and arithmetic as IEEE 754 says."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fpsim.runtime.processor import ieee_arithmetic
from fpsim.torch.operators import torch

Method = TypeVar("Method", bound=Callable[..., Any])


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Make torch use one thread inside a `with` block, since the bits of its sums depend on the number of threads.

    Emulated products, which have the same bits on any number, keep theirs.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fixed_bits(method: Method) -> Method:
    """Return a method of a trainer that runs torch on one thread and, where operations are specified, by IEEE 754.

    Then a processor that is set to flush subnormals or to round otherwise keeps no bit from being what it should be.
    """

    @functools.wraps(method)
    def run(self: Any, *arguments: Any) -> Any:
        with one_thread(), ieee_arithmetic() if self.settings.specified else contextlib.nullcontext():
            return method(self, *arguments)

    return run  # type: ignore[return-value]
