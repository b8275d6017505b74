"""The modules of a watched model: wrapped forward passes, and the torch function mode that observes products."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch

from fpsim.analysis.models import products as known
from fpsim.analysis.models.compiled import HiddenProducts, compiled_modules, is_inside, original, stance
from fpsim.analysis.models.products import RecordedProduct
from fpsim.analysis.models.selection import Selection
from fpsim.analysis.models.watching.hooks import in_backward
from fpsim.analysis.models.watching.replacements import Replacements
from fpsim.analysis.models.watching.tally import Tally

REPLACED = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)  # forward may be replaced


class WatchedModules:
    """The modules of a model, whose forward passes are wrapped while a recorded step runs.

    Args:
      model: a torch.nn.Module.
      selection: the layers to record.
      tally: the Tally that counts the model's multiplications.
      see: called with the RecordedProduct of each product that the modules compute.
      miss: called with (name of the function, number of multiplications) for each call of a torch function that
        multiplies but is not recorded.
    """

    def __init__(
        self, model: Any, selection: Selection, tally: Tally, see: Callable[[RecordedProduct], None],
        miss: Callable[[str, int], None],
    ) -> None:  # fmt: skip
        self.model, self.selection = model, selection
        self.notes: dict[str, None] = {}  # on modules inside which nothing is seen
        self.ignored: set[int] = set()  # threads whose forward pass of the model is not recorded
        self.compiled = compiled_modules(model)
        self._tally, self._see = tally, see
        self._mode: Any = known.Products(self._seen, miss)
        self._stance: Any = None
        self._replaced = Replacements()
        self._recomputed: dict[int, torch.nn.Module] = {}  # layers in checkpoints that build their graph in backward
        self._hidden: dict[str, HiddenProducts] = {}
        self._stack: list[torch.nn.Module] = []
        self._products = 0  # seen so far
        self._attached = False
        self._suspended = False

    @property
    def running(self) -> torch.nn.Module:
        """The innermost module whose forward pass is running; the model itself if none is."""
        return self._stack[-1] if self._stack else self.model

    def wait_for_recomputation(self) -> None:
        """Remember that the running module will run again in the backward pass, as inside torch.utils.checkpoint.

        Its forward pass builds no autograd graph now, so hooks on gradients can be added only in the second run.
        """
        if self._stack:
            self._recomputed[id(self._stack[-1])] = self._stack[-1]

    def forget(self) -> None:
        """Restore the forward passes of all modules, also of those that a checkpoint may still run in backward."""
        self._replaced.restore()
        self._recomputed = {}

    def _seen(self, product: RecordedProduct) -> None:
        """Add 1 to the number of products seen, and pass the product to `see`."""
        self._products += 1
        self._see(product)

    def attach(self) -> None:
        """Wrap the forward passes of all modules, and enter the torch function mode that observes products."""
        self._replaced.restore()
        self._tally.ran(self.model)  # its own forward pass has begun
        for name, module in self.model.named_modules():
            if any(is_inside(name, outer) for outer in self.compiled):
                continue
            if not isinstance(module, torch.jit.ScriptModule):
                self._replaced.replace(module, self._watched(module))
        for name, module in self.compiled.items():
            self._hide(name, module)
        self._stance = stance("force_eager")  # else torch.compile would compile the mode too
        self._stance.__enter__()
        self._mode.__enter__()
        self._attached = True

    def detach(self) -> None:
        """Leave the torch function mode, and restore the forward passes of all modules."""
        if not self._attached:
            return
        self._attached = False
        self._mode.__exit__(None, None, None)
        self._stance.__exit__(None, None, None)
        self._replaced.restore()
        for module in self._recomputed.values():
            self._replaced.replace(module, self._replayed(module))

    def _hide(self, name: str, module: torch.nn.Module) -> None:
        """Make a compiled module run outside the torch function mode, so that torch.compile's graphs stay as they are.

        The module's products are not seen; their multiplications are counted from the shapes of the module's inputs.
        name: the module's name.
        """
        attribute = "forward" if vars(module).get("_compiled_call_impl") is None else "_compiled_call_impl"
        compiled = getattr(module, attribute)
        products = self._hidden.setdefault(name, HiddenProducts(module))

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._suspended or not self._attached or get_ident() in self.ignored:
                return compiled(*args, **kwargs)
            with self._outside():
                hidden = products.of(args, kwargs)
                self._tally.compiled(original(module), name, hidden, args[0] if args else None)
                with stance("default"):
                    return compiled(*args, **kwargs)

        self._replaced.replace(module, run, attribute)

    def _watched(self, module: torch.nn.Module) -> Callable[..., Any]:
        """Return a wrapper of a module's forward pass, during which products are attributed to the module.

        A module that torch may run in one fused operation runs outside the torch function mode, and its products are
        not seen. If the mode observes no product in the forward pass of a linear layer or a convolution, the layer's
        product is reported from its input and output.
        """
        forward = module.forward

        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if get_ident() in self.ignored:
                return forward(*args, **kwargs)
            self._tally.ran(module)
            if not self._suspended and known.is_fused(module):
                return self._unseen(module, forward, args, kwargs)
            self._stack.append(module)
            before = self._products
            try:
                output = forward(*args, **kwargs)
            finally:
                self._stack.pop()
            if isinstance(module, REPLACED) and self._products == before:  # its forward calls another operator
                self._stack.append(module)
                self._seen(known.product_of_layer(module, args[0] if args else next(iter(kwargs.values())), output))
                self._stack.pop()
            return output

        return run

    def _unseen(self, module: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a module outside the torch function mode, so that torch may fuse it, and return its output.

        The recording gets a note on the module, whose products are counted as not seen. forward: the module's forward
        pass. args, kwargs: positional and keyword arguments of the pass.
        """
        name = self.selection.modules[id(module)] or "the model"
        kind = type(module).__name__
        self.notes[
            f"{name} ({kind} in eval mode) may run in one piece, inside which nothing is seen: call "
            "torch.backends.mha.set_fastpath_enabled(False) to record it."
        ] = None
        self._tally.hid(module, self.selection.modules[id(module)], f"{kind}, in one piece", args[0] if args else None)
        with self._outside():
            return forward(*args, **kwargs)

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """Return a context manager inside which products are not observed: it leaves the torch function mode."""
        self._mode.__exit__(None, None, None)
        self._suspended = True
        try:
            yield
        finally:
            self._suspended = False
            self._mode.__enter__()

    def _replayed(self, module: torch.nn.Module) -> Callable[..., Any]:
        """Return a wrapper of a module's forward pass that observes products only inside a backward pass.

        The pass runs there if torch.utils.checkpoint recomputes it.
        """
        forward = module.forward

        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not in_backward():
                return forward(*args, **kwargs)
            self._stack.append(module)
            try:
                with self._mode:
                    return forward(*args, **kwargs)
            finally:
                self._stack.pop()

        return run
