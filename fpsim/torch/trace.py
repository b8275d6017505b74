"""Watchers of products: a watcher is called with every matrix product of every quantised layer."""

from __future__ import annotations

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
_watchers: list[Watcher] = []
_hiding: list[bool] = []  # an element for each active block of `hidden`


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call a function with every product of a quantised layer while a `with` block runs; results do not change.

    watcher: the function; its argument is a `ProductCall`, and what it returns is ignored.

    Example:
      >>> import torch
      >>> from fpsim.torch.trace import watching
      >>> layer, seen = fp.torch.QuantLinear(32, 8, recipe=fp.torch.MXFP8, name="head"), []
      >>> with watching(lambda call: seen.append((call.layer, call.product, call.result.shape))):
      ...     y = layer(torch.ones(4, 32))
      >>> seen
      [('head', 'fprop', (4, 8))]
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


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
    _hiding.append(True)
    try:
        yield
    finally:
        _hiding.pop()


def is_watched() -> bool:
    """Return whether a `with watching(...)` block is active, and no `with hidden()` block."""
    return bool(_watchers) and not _hiding


def show(call: ProductCall) -> None:
    """Call each function that an active `with watching(...)` block has, from the outermost block inwards.

    call: the matrix product that the functions are called with.
    """
    for watcher in tuple(_watchers):
        watcher(call)
