"""Counting of a model's multiplications while it runs, for reports that are made without a recording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fpsim.analysis.models.products import Products, RecordedProduct
from fpsim.analysis.models.selection import ATTENTION, joined
from fpsim.analysis.models.watching.tally import Tally


@contextmanager
def counting(model: Any) -> Iterator[Tally]:
    """Return a context manager for a Tally that counts a model's multiplications; results of the model do not change.

    Products that run outside of the model, as in a loss, are not counted.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.counting import counting
      >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.LSTM(2, 3))
      >>> with counting(model) as tally:
      ...     y = model(torch.ones(5, 4))
      >>> print(tally.coverage.of({"0"}))
      Only 11.8 % of the model's weights and 11.8 % of its multiplications are seen; not seen: 1 (LSTM).
    """
    tally, names = Tally(model), {id(module): name for name, module in model.named_modules()}
    stack: list[Any] = []

    def enter(module: Any, _: Any) -> None:
        tally.ran(module)
        stack.append(module)

    def leave(*_: Any) -> None:
        stack.pop()

    def see(product: RecordedProduct) -> None:
        if not stack:  # of the loss
            return
        module, weight = stack[-1], product.weight
        if product.lookup:
            tally.looked_up(module, weight)
            return
        name = names[id(module)] if weight is not None else joined(names[id(module)], ATTENTION)
        tally.saw(name, module, weight, product.multiplications)

    def miss(function: str, multiplications: int) -> None:
        if stack:
            tally.missed(stack[-1], names[id(stack[-1])], function, multiplications)

    handles = []
    for module in model.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            handles += [
                module.register_forward_pre_hook(enter, prepend=True),
                module.register_forward_hook(leave, always_call=True),
            ]
    try:
        with Products(see, miss):
            yield tally
    finally:
        for handle in handles:
            handle.remove()
