"""A measurement of the tensors that torch's autograd keeps for the backward pass of a module, each storage once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from fpsim.analysis.models.losses import loss_of
from fpsim.deprecation import warn_renamed
from fpsim.display.optional import DataFrame, frame
from fpsim.display.wording import bytes_in_words, plural
from fpsim.errors import require_kind


@dataclass(frozen=True)
class SavedTensor:
    """A torch storage that autograd keeps for the backward pass.

    Attributes:
      layer: qualified name of the innermost module whose forward pass first saved a tensor in this storage; "" for the
        model itself or the loss.
      shape: shape of the tensor that was saved first.
      dtype: dtype of that tensor as a string, such as "float32".
      bytes: bytes of the storage.
      input_of: name of the linear layer whose input the storage holds; "" for none.
    """

    layer: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    input_of: str = ""

    @property
    def module(self) -> str:
        """Deprecated name of `layer`; using it warns."""
        warn_renamed("SavedTensor.module", "layer")
        return self.layer


@dataclass(frozen=True)
class SavedTensors:
    """The tensors that a forward pass keeps for the backward pass, without parameters and buffers.

    Attributes:
      rows: a SavedTensor for each torch storage, in the order in which autograd saved them.
    """

    rows: tuple[SavedTensor, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all storages that autograd keeps."""
        return sum(row.bytes for row in self.rows)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each SavedTensor, a column for each of its fields."""
        return frame([row.__dict__ for row in self.rows])

    def __str__(self) -> str:
        return f"autograd keeps {bytes_in_words(self.bytes)} in {plural(len(self.rows), 'storage')}"


def saved_tensors(model: torch.nn.Module, batch: object, loss: Callable[..., Any] | None = None) -> SavedTensors:
    """Run a forward pass and list the storages that autograd keeps for its backward pass.

    Parameters and buffers of the model are left out. Views of one storage count once. Tensors that
    `torch.autograd.graph.saved_tensors_hooks` inside the model intercept are not counted.

    Args:
      model: a torch.nn.Module, also on torch's "meta" device; its mode, training or evaluation, is not changed.
      batch: the model's input, or a tuple of inputs; if the loss is a torch criterion, (inputs..., target).
      loss: a function of (model, batch), or a torch criterion; None runs the model without a loss.

    Returns:
      A SavedTensors, a row for each storage.

    Raises:
      TypeError: model is not a torch.nn.Module, or loss cannot be called.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
      >>> saved = fp.analysis.saved_tensors(model, torch.ones(3, 4))
      >>> [(row.layer, row.shape, row.bytes) for row in saved.rows]
      [('0', (3, 4), 48), ('1', (3, 8), 96)]
    """
    require_kind("model", model, torch.nn.Module, "a torch.nn.Module")
    function = None if loss is None else loss_of(loss)
    held = {_storage(x) for x in (*model.parameters(), *model.buffers())}
    kept: dict[int, tuple[SavedTensor, Any]] = {}  # holds the tensors as well, so that no address is reused
    inputs: dict[int, tuple[str, Any]] = {}
    stack: list[str] = []

    def pack(x: Any) -> Any:
        for part in _parts(x):
            address, size = _storage(part), part.untyped_storage().nbytes()
            if address not in held and address not in kept and size:
                dtype = str(part.dtype).removeprefix("torch.")
                module = stack[-1] if stack else ""
                kept[address] = SavedTensor(module, tuple(part.shape), dtype, size), part
        return x

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    with torch.enable_grad(), _named_calls(model, stack, inputs), hooks:  # also for callers inside torch.no_grad()
        if function is not None:
            function(model, batch)
        else:
            model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    rows = [
        replace(row, input_of=inputs[address][0]) if address in inputs else row for address, (row, _) in kept.items()
    ]
    return SavedTensors(tuple(rows))


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the dense tensors of which a tensor consists: itself, or the indices and values of a sparse one."""
    if x.layout == torch.sparse_coo:
        return x._indices(), x._values()
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return x.crow_indices(), x.col_indices(), x.values()
    return (x.ccol_indices(), x.row_indices(), x.values()) if x.layout in (torch.sparse_csc, torch.sparse_bsc) else (x,)


def _storage(x: torch.Tensor) -> int:
    """Return the address of the object of torch that holds a tensor's elements, which views of one storage share.

    Tensors on torch's meta device have such an object too, although they have no elements.
    """
    return int(x.untyped_storage()._cdata)


@contextlib.contextmanager
def _named_calls(model: Any, stack: list[str], inputs: dict[int, tuple[str, Any]]) -> Iterator[None]:
    """Track the names of running modules in `stack`, and record the inputs of linear layers, inside a `with` block.

    model: a torch.nn.Module. stack: names of the modules that run, the innermost last. inputs: address of an input's
    storage -> (name of the layer, input). Both are changed in place.
    """
    handles = []

    def enter(name: str, linear: bool) -> Any:
        def hook(_: Any, arguments: tuple[Any, ...]) -> None:
            stack.append(name)
            if linear and arguments and isinstance(arguments[0], torch.Tensor):
                inputs.setdefault(_storage(_parts(arguments[0])[-1]), (name, arguments[0]))

        return hook

    def leave(_: Any, arguments: Any, result: Any) -> None:
        stack.pop()

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(name, isinstance(module, torch.nn.Linear))))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
