"""Modules compiled by torch.compile: how they are found, counted and run eagerly."""

from __future__ import annotations

import copy
import dataclasses
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree

from fpsim.analysis.models.counting import counting
from fpsim.analysis.models.coverage import Coverage, Parts, add_part
from fpsim.analysis.models.losses import arguments_of
from fpsim.analysis.models.watching.tally import COMPILED_KIND
from fpsim.display.wording import percent

WRAPPED = "OptimizedModule"  # name of the class in which torch.compile wraps a module
ORIGINAL = "_orig_mod"  # that class's attribute for the wrapped module
MARK = "_torchdynamo_orig_callable"  # attribute of functions that torch.compile returns


def is_compiled(module: Any) -> bool:
    """Return whether a torch.nn.Module is compiled: by torch.compile, by its compile(), or with a compiled forward().

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.compiled import is_compiled
      >>> layer = torch.nn.Linear(2, 2)
      >>> is_compiled(layer), is_compiled(torch.compile(layer, backend="eager"))
      (False, True)
    """
    forward = vars(module).get("forward")
    if type(module).__name__ == WRAPPED:
        return getattr(forward, "__self__", None) is not original(module)  # equal after `run_eagerly`
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(forward, MARK)


def compiled_modules(model: Any) -> dict[str, Any]:
    """Return name -> module for the compiled modules of a model, without those inside another compiled module."""
    modules: dict[str, Any] = {}
    for name, module in model.named_modules():
        if is_compiled(module) and not any(is_inside(name, outer) for outer in modules):
            modules[name] = module
    return modules


def is_inside(name: str, outer: str) -> bool:
    """Return whether `name` is the qualified name of the module `outer`, or of a module inside it."""
    return not outer or name == outer or name.startswith(f"{outer}.")


def original(module: Any) -> Any:
    """Return the module that torch.compile wrapped as `module`; return a module that is no wrapper unchanged."""
    return getattr(module, ORIGINAL) if type(module).__name__ == WRAPPED else module


def run_eagerly(model: Any) -> None:
    """Undo torch.compile in place: each module of `model` then runs its class's forward(), not a compiled one.

    Callers pass a copy of the user's model, so that the original stays compiled.
    """
    for module in model.modules():
        if type(module).__name__ == WRAPPED:
            vars(module)["forward"] = original(module).__call__
        elif hasattr(vars(module).get("forward"), MARK):
            del module.forward
        if getattr(module, "_compiled_call_impl", None) is not None:
            module._compiled_call_impl = None


def stance(word: str) -> AbstractContextManager[Any]:
    """Return a context manager in which functions compiled by torch.compile run as `word` says.

    The context manager does nothing if this process has not compiled any function, or if torch lacks
    torch.compiler.set_stance. word: a stance of torch.compiler.set_stance, such as "default" (run compiled) or
    "force_eager" (run as written).
    """
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return nullcontext()
    context: AbstractContextManager[Any] = torch.compiler.set_stance(word)
    return context


class HiddenProducts:
    """Counter of the multiplications in a call of a module, found from the shapes of its inputs, not their values.

    torch.compile hides the functions that a compiled module calls. So an uncompiled copy of the module, whose tensors
    have shapes but no values (torch's meta device), runs instead.

    Args:
      module: the torch.nn.Module, or what torch.compile made of it; it is neither run nor changed.
    """

    def __init__(self, module: Any) -> None:
        self._module = original(module)
        self._copy: Any = None
        self._known: dict[str, Coverage | None] = {}

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coverage | None:
        """Return the multiplications of a call of the module as a Coverage; None if they depend on values.

        args, kwargs: positional and keyword arguments of the call.
        """
        leaves, places = _pytree.tree_flatten((args, kwargs))
        key = repr([places, *(tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in leaves)])
        if key not in self._known:
            try:
                if self._copy is None:
                    self._copy = _on_meta(self._module)
                empty, named = _pytree.tree_map(_meta, (args, kwargs))
                with torch.no_grad(), stance("force_eager"), counting(self._copy) as tally:
                    self._copy(*empty, **named)
                self._known[key] = tally.coverage
            except Exception:  # the forward pass reads values, which the copy on the meta device does not have
                self._known[key] = None
        return self._known[key]


def _on_meta(module: Any) -> Any:
    """Return a copy of a torch.nn.Module on torch's meta device, whose weights have shapes but no values.

    The copy runs eagerly.
    """
    held = (*module.parameters(), *module.buffers())
    memo: dict[int, Any] = {id(x): _meta(x) for x in held}
    copied = copy.deepcopy(module, memo)
    vars(copied).pop("forward", None)  # the compiled one
    run_eagerly(copied)
    return copied


def coverage_of_call(model: Any, batch: Any) -> Coverage | None:
    """Return a model's multiplications for a batch, from shapes alone; those in compiled modules count as not seen.

    batch: the model's arguments: a tuple or list of them, a mapping of keyword arguments, or one argument. The result
    is None if the forward pass depends on values of tensors.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.compiled import coverage_of_call
      >>> model = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.compile(torch.nn.Linear(24, 8), backend="eager"))
      >>> print(coverage_of_call(model, torch.ones(4, 8)))
      Seen: 50.0 % of the weights and 50.0 % of the multiplications; not seen: 1 (Linear, compiled).
    """
    coverage = HiddenProducts(model).of(*arguments_of(batch))
    if coverage is None:
        return None
    prefix = f"{ORIGINAL}." if type(model).__name__ == WRAPPED else ""
    compiled = {name.removeprefix(prefix): module for name, module in compiled_modules(model).items()}
    parts = []
    for part in coverage.parts:
        outer = next((name for name in compiled if is_inside(part.name, name)), None)
        if outer is None:
            parts.append(part)
        else:
            kind = f"{type(original(compiled[outer])).__name__}{COMPILED_KIND}"
            parts.append(dataclasses.replace(part, name=outer, kind=kind, seen=False))
    merged: Parts = {}
    for part in parts:
        add_part(merged, part)
    return dataclasses.replace(coverage, parts=tuple(merged.values()))


def share_of(coverage: Coverage, name: str) -> str:
    """Return the clause ", 12 % of the model's multiplications," on the share of the module called `name`.

    coverage: the counted multiplications of the model; without any, the clause is "".
    """
    whole = sum(part.multiplications for part in coverage.parts)
    inside = sum(part.multiplications for part in coverage.parts if is_inside(part.name, name))
    return f", {percent(inside / whole)} of the model's multiplications," if whole else ""


def judged_eagerly(model: Any, coverage: Coverage) -> tuple[str, ...]:
    """Return a sentence for each compiled module of `model`, which says that an uncompiled copy was measured instead.

    coverage: the multiplications of that copy, from which the sentence tells the module's share.
    """
    return tuple(
        f"{name or 'The model'} ({type(original(module)).__name__}) is compiled, and a copy ran as it is written: "
        f"its products{share_of(coverage, name)} are those of separate operations, which compiled graphs may fuse."
        for name, module in compiled_modules(model).items()
    )


def _meta(x: Any) -> Any:
    """Return a tensor as one of the same shape and dtype on the meta device; return any other object unchanged."""
    if not isinstance(x, torch.Tensor):
        return x
    empty = torch.empty_like(x, device="meta", requires_grad=False)
    return torch.nn.Parameter(empty, x.requires_grad) if isinstance(x, torch.nn.Parameter) else empty
