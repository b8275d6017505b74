"""Watchers of products: a watcher is called with every matrix product of every quantised layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fpsim.arrays import Array


class ProductCall(NamedTuple):
    """One matrix product of a quantised layer, as watchers see it.

    Attributes:
      layer: the layer's qualified name.
      product: "fprop", "dgrad" or "wgrad".
      a, b: the operands, (M, K) and (K, N), as `fpsim.torch.products.CastOperand`.
      how: the arithmetic, as `fpsim.torch.plan.ProductPlan`.
      result: (M, N) float32; float64 if torch multiplied float64 operands.
      bias: (N,), the bias that was added to the sums, or None.
    """

    layer: str
    product: str
    a: Any
    b: Any
    how: Any
    result: Array
    bias: Array | None = None


Watcher = Callable[[ProductCall], None]


class _Blocks(threading.local):
    """The functions of active `watching` blocks, and the number of active `hidden` blocks, in the present thread."""

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self.hidden = 0


_active = _Blocks()


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call a function with every product of a quantised layer while a `with` block runs; results do not change.

    Products that other threads compute are left out. watcher: the function; its argument is a `ProductCall`, and what
    it returns is ignored.

    Example:
      >>> import torch
      >>> from fpsim.torch.trace import watching
      >>> layer, seen = fp.torch.QuantLinear(32, 8, recipe=fp.torch.MXFP8, name="head"), []
      >>> with watching(lambda call: seen.append((call.layer, call.product, call.result.shape))):
      ...     y = layer(torch.ones(4, 32))
      >>> seen
      [('head', 'fprop', (4, 8))]
    """
    _active.watchers.append(watcher)
    try:
        yield
    finally:
        _active.watchers.remove(watcher)


@contextmanager
def hidden() -> Iterator[None]:
    """Stop calling the functions of `watching` while a `with` block runs, for products that are computed a second time.

    Example:
      >>> import torch
      >>> from fpsim.torch.trace import hidden, watching
      >>> layer, seen = fp.torch.QuantLinear(32, 8, recipe=fp.torch.MXFP8), []
      >>> with watching(seen.append), hidden():
      ...     y = layer(torch.ones(4, 32))
      >>> seen
      []
    """
    _active.hidden += 1
    try:
        yield
    finally:
        _active.hidden -= 1


def is_watched() -> bool:
    """Return whether a `with watching(...)` block is active, and no `with hidden()` block."""
    return bool(_active.watchers) and not _active.hidden


def show(call: ProductCall) -> None:
    """Call each function that an active `with watching(...)` block has, from the outermost block inwards.

    call: the matrix product that the functions are called with.
    """
    for watcher in tuple(_active.watchers):
        watcher(call)
