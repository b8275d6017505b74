"""Losses as functions of (model, batch): the caller's own function, or a torch criterion of (output, target)."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fpsim.errors import shown

WANTED = "loss must be a function of (model, batch) that returns the loss, or a criterion of torch"


class Criterion:
    """A torch criterion of (output, target) as a loss of (model, batch), where a batch is (*inputs, target).

    Args:
      criterion: a module of torch, such as torch.nn.CrossEntropyLoss(), or a function of torch.nn.functional.
    """

    def __init__(self, criterion: Callable[..., Any]) -> None:
        self.criterion = criterion

    def __call__(self, model: Any, batch: Any) -> Any:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            name = getattr(self.criterion, "__name__", type(self.criterion).__name__)
            raise TypeError(
                f"{name} needs batches of (input, target); got {shown(batch)}. Or take a loss of (model, batch)."
            )
        *inputs, target = batch
        return self.criterion(model(*inputs), target)


def called_with(model: Any, batch: Any) -> Any:
    """Return the model's output for a batch, whatever the model returns.

    A batch is passed as model(*batch) if it is a tuple or list, as model(**batch) if a mapping, else as model(batch).

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.losses import called_with
      >>> add = torch.add
      >>> called_with(add, (1, torch.ones(1))), called_with(add, {"input": torch.ones(1), "other": 2})
      (tensor([2.]), tensor([3.]))
    """
    args, kwargs = arguments_of(batch)
    return model(*args, **kwargs)


def arguments_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments with which `called_with` calls a model for a batch.

    A tuple or list is the positional arguments, a mapping the keyword arguments; any other batch is a single argument.
    """
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    return ((), dict(batch)) if isinstance(batch, Mapping) else ((batch,), {})


@contextmanager
def backward_refused(batch: str) -> Iterator[None]:
    """Raise a ValueError in place of a RuntimeError that a loss's backward pass raises in the `with` block.

    Subclasses of RuntimeError, such as a GpuError, are passed on. batch: the batch of the loss, for the message.
    """
    try:
        yield
    except RuntimeError as reason:
        if type(reason) is not RuntimeError:
            raise
        raise ValueError(f"loss must have a backward pass; that of {batch} raises RuntimeError: {reason}") from reason


def refuse_swapped(model: Any, batches: Any, loss: Any) -> None:
    """Raise a TypeError if a model, batches and a loss were passed in another order than (model, batches, loss).

    A model is a torch.nn.Module, batches cannot be called, and a loss can.
    """

    def fit(model: Any, batches: Any, loss: Any) -> bool:
        return isinstance(model, torch.nn.Module) and not callable(batches) and callable(loss)

    arguments = (model, batches, loss)
    if not fit(*arguments) and any(fit(*others) for others in itertools.permutations(arguments)):
        kinds = [type(argument).__name__ for argument in arguments]
        raise TypeError(
            f"arguments must be (model, batches, loss), in this order; got {kinds[0]}, {kinds[1]}, {kinds[2]}. Swap "
            "them, or name them: batches=..., loss=...."
        )


def loss_of(loss: Any) -> Callable[[Any, Any], Any]:
    """Return `loss` as a function that takes a model and a batch and returns the value of the loss.

    loss: such a function, which is returned unchanged; or a torch criterion, which is a module such as
    `torch.nn.CrossEntropyLoss()` or a function of torch.nn.functional. A criterion is called with the model's output
    for all but the last element of a batch, and with the last element. Raises a TypeError for anything else.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.losses import loss_of
      >>> batch = torch.ones(2, 3), torch.tensor([0, 1])
      >>> loss_of(torch.nn.CrossEntropyLoss())(torch.nn.Identity(), batch).round(decimals=4)
      tensor(1.0986)
    """
    if isinstance(loss, torch.nn.Module) or getattr(loss, "__module__", "") == "torch.nn.functional":
        return Criterion(loss)
    if not callable(loss):
        raise TypeError(f"{WANTED}; got {shown(loss)}.")
    function: Callable[..., Any] = loss
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # some functions in C have no signature
        return function
    try:
        signature.bind(None, None)
    except TypeError as problem:
        raise TypeError(f"{WANTED}; got {getattr(loss, '__name__', 'one')}{signature}: {problem}.") from None
    return function
