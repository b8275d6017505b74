"""The operations of a training step in the order in which they ran: a name and a digest of each result."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.recipes.linear_recipe import PRODUCTS
from fpsim.torch.operators import Tensor, array_of, torch
from fpsim.torch.trace import ProductCall, watching

Mode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
DIGITS = 16
NAN = 0x7FC00000
RESULT = ", result"  # what the name of a module's result ends in
Show = Callable[[str, Array], None]


class _Traces(threading.local):
    """The active traces of the present thread, the innermost one last."""

    def __init__(self) -> None:
        self.traces: list[OperationTrace] = []


_active = _Traces()


class TracedOperation(NamedTuple):
    """An operation of a training step.

    Attributes:
      name: the module and the operation, such as "blocks.0.norm1, RootMeanSquareNorm, forwards".
      digest: 16 hexadecimal digits of SHA-256 over the result's float32 bits, every NaN as 0x7FC00000.
    """

    name: str
    digest: str


def reported(function: Any) -> Any:
    """Wrap a torch function class so that traces record its results and gradients; return the class.

    function: a subclass of torch.autograd.Function, whose `forward` and `backward` are replaced.
    """
    forward, backward, name = function.forward, function.backward, function.__name__.strip("_")

    @functools.wraps(forward)
    def run_forward(ctx: Any, *arguments: Any) -> Any:
        result = forward(ctx, *arguments)
        if _active.traces:
            ctx.place = _active.traces[-1].place
            report(f"{ctx.place}, {name}, forwards", result)
        return result

    @functools.wraps(backward)
    def run_backward(ctx: Any, *slopes: Any) -> Any:
        gradients = backward(ctx, *slopes)
        if _active.traces:
            place = getattr(ctx, "place", "")
            for gradient in gradients if isinstance(gradients, tuple) else (gradients,):
                if gradient is not None:
                    report(f"{place}, {name}, backwards", gradient)
        return gradients

    function.forward, function.backward = staticmethod(run_forward), staticmethod(run_backward)
    return function


def report(name: str, result: Tensor) -> None:
    """Add the result of an operation, called `name`, to the innermost active trace, if there is one."""
    if _active.traces:
        _active.traces[-1].see(name, array_of(result))


class OperationTrace:
    """A context that records all operations that run inside it, within a model's modules and between them.

    Args:
      model: the model, whose module names are part of the operations' names.
      see: a callback that gets the name and the result of each operation; None to record names and digests instead.

    Attributes:
      operations: the operations so far, unless `see` was passed.
      arguments: the arguments of the last operation if it was one of torch's own; else ().

    Example:
      >>> import torch
      >>> from fpsim.train.operations.trace import OperationTrace
      >>> layer, x = torch.nn.Linear(2, 1, bias=False), torch.ones(1, 2)
      >>> with OperationTrace(torch.nn.Sequential(layer)) as trace:
      ...     y = layer(x) * 2
      >>> [operation.name for operation in trace.operations]
      ['0, aten.mm', '0, result', 'behind 0, aten.mul']
    """

    def __init__(self, model: Any, see: Show | None = None) -> None:
        self.operations: list[TracedOperation] = []
        self.arguments: tuple[Any, ...] = ()
        self._names = {module: name for name, module in model.named_modules() if name}
        self._show = see
        self._places: list[str] = []
        self._last = "before the first module"
        self._stack = contextlib.ExitStack()

    @property
    def place(self) -> str:
        """Name of the innermost module that runs now; between modules, a text on what ran last.

        The text is "behind NAME" if the last event was the end of the module NAME. It is "behind LAYER, PRODUCT" if the
        last event was a product of a linear layer's backward pass ("dgrad" or "wgrad"). Before the first of these it is
        "before the first module".
        """
        return self._places[-1] if self._places else self._last

    @staticmethod
    def is_shared(name: str) -> bool:
        """Return whether runs with "torch" and "specified" arithmetic both have an operation of this name.

        These are the products of linear layers and the results of modules.
        """
        return name.endswith((RESULT, *(f", {product}" for product in PRODUCTS)))

    def see(self, name: str, result: Array, arguments: tuple[Any, ...] = ()) -> None:
        """Add an operation's name and a digest of its result to the trace.

        If the trace was created with a callback, call that with the name and the result instead. arguments: the
        operation's arguments if it is one of torch's own, such as aten.mm; else ().
        """
        self.arguments = arguments
        if self._show is not None:
            self._show(name, result)
            return
        digest = hashlib.sha256(canonical(result).tobytes()).hexdigest()[:DIGITS]
        self.operations.append(TracedOperation(name, digest))

    def __enter__(self) -> OperationTrace:
        for module, name in self._names.items():
            self._stack.callback(module.register_forward_pre_hook(functools.partial(self._begin, name)).remove)
            self._stack.callback(module.register_forward_hook(self._end).remove)
        self._stack.enter_context(watching(self._product))
        self._stack.enter_context(_Dispatched(self))
        _active.traces.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _active.traces.remove(self)
        self._stack.close()

    def _begin(self, name: str, *_: Any) -> None:
        """Record that the module `name` begins to run; names of operations begin with `name` until the module ends."""
        self._places.append(name)

    def _end(self, module: Any, _inputs: Any, result: Any) -> None:
        """Record that the innermost running module ends, and add its result to the trace if that is float32."""
        name = self._places.pop()
        self._last = f"behind {name}"
        if isinstance(result, Tensor) and result.dtype == torch.float32:
            self.see(f"{name}{RESULT}", array_of(result))

    def _product(self, call: ProductCall) -> None:
        """Add the result of a linear layer's product to the trace; call: the layer, the product and its result."""
        self.see(f"{call.layer}, {call.product}", call.result)
        if call.product != "fprop":
            self._last = f"behind {call.layer}, {call.product}"


class _Dispatched(Mode):  # type: ignore[misc]
    """A dispatch mode of torch that adds the float32 results of torch's own operations to an OperationTrace."""

    def __init__(self, trace: OperationTrace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        computes = func.namespace == "aten" and not func.is_view
        for tensor in (result if isinstance(result, tuple) else (result,)) if computes else ():
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float32:
                name = func._schema.name.removeprefix("aten::")
                self._trace.see(f"{self._trace.place}, aten.{name}", array_of(tensor), args)
        return result


def canonical(array: Array) -> Array:
    """Return the bytes of a float32 array as flat uint8: C order, low byte first, every NaN as 0x7FC00000."""
    flat = np.ascontiguousarray(array, "<f4").reshape(-1)
    if np.isnan(flat).any():
        flat = np.where(np.isnan(flat), np.uint32(NAN).view(np.float32), flat)
    return flat.view(np.uint8)
