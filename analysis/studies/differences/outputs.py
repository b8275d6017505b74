"""The comparison of two models by the outputs of their modules, for compiled models, whose graphs hide products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from fpsim.analysis.models.compiled import ORIGINAL, is_compiled
from fpsim.analysis.models.floats import floats_of
from fpsim.analysis.studies.differences.growth import LayerDifference, layer_difference
from fpsim.arrays import Array, format_of, same_bits
from fpsim.formats.named import FP32, Format
from fpsim.torch.operators import array_of


class ModuleOutput(NamedTuple):
    """A tensor of floats that a module returned from one call.

    Attributes:
      module: name of the module.
      values: a float32 or float64 matrix whose columns are the tensor's last axis.
      fmt: the format of the tensor's elements.
    """

    module: str
    values: Array
    fmt: Format = FP32


class OutputDifference(NamedTuple):
    """The first outputs of modules that differ in two models, and the difference of every output.

    Attributes:
      first, second: the first output that differs, of the first and of the second model; None if all are equal.
      after: name of the module whose output was the last equal one before them; "" if none was.
      growth: the difference of every output that both models returned in the same shape.
    """

    first: ModuleOutput | None
    second: ModuleOutput | None
    after: str
    growth: tuple[LayerDifference, ...]


@contextmanager
def watching_outputs(model: Any, see: Callable[[ModuleOutput], None]) -> Iterator[None]:
    """Call `see` with each tensor of floats that a module of `model` (a torch.nn.Module) returns inside a `with` block.

    Modules inside of compiled graphs are not watched.
    """
    handles = []
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        if is_compiled(module):
            inside = (*inside, f"{name}." if name else "")
        if name == "" and inside:
            inside = ("",)
        if getattr(module, "_compiled_call_impl", None) is None:
            plain = plain_name(name)
            handles.append(module.register_forward_hook(lambda *call, name=plain: show_output(name, call[2], see)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def show_output(name: str, output: Any, see: Callable[[ModuleOutput], None]) -> None:
    """Call `see` with each tensor of floats in `output`, which the module called `name` has returned.

    `output`: a tensor, or nested containers of tensors; sparse tensors are ignored.
    """
    for tensor in filter(lambda x: x.layout == torch.strided, floats_of(output)):
        array = np.array(array_of(tensor.detach()))
        values = array if array.dtype == np.float64 else array.astype(np.float32)
        matrix = values.reshape(-1, values.shape[-1] if values.ndim else 1)
        see(ModuleOutput(name, matrix, format_of(array.dtype) or FP32))


def plain_name(name: str) -> str:
    """Return the name of a module without the parts `_orig_mod` that torch.compile adds.

    Example:
      >>> from fpsim.analysis.studies.differences.outputs import plain_name
      >>> plain_name("_orig_mod.block.0._orig_mod.up")
      'block.0.up'
    """
    return ".".join(part for part in name.split(".") if part != ORIGINAL)


def first_difference(first: list[ModuleOutput], second: list[ModuleOutput]) -> OutputDifference:
    """Compare the outputs of the modules of two models; return the first that differ, and the size of all differences.

    `first`, `second`: the outputs of the modules of each model, in the order in which they ran. The i-th output of a
    module in one model is compared with its i-th output in the other.

    Example:
      >>> from fpsim.analysis.studies.differences.outputs import ModuleOutput, first_difference
      >>> one, two = (ModuleOutput("up", np.float32([[value]])) for value in (1, 2))
      >>> difference = first_difference([one, one], [one, two])
      >>> difference.first.module, difference.after
      ('up', 'up')
    """
    growth, calls = [], dict[str, int]()
    first_pair: tuple[ModuleOutput, ModuleOutput] | None = None
    after = before = ""
    for x, y in _paired(first, second):
        if x.values.shape == y.values.shape:
            call = calls[x.module] = calls.get(x.module, -1) + 1
            growth.append(layer_difference(x.module or "the model", "output", call, x.values, y.values))
        if first_pair is None and not same_bits(x.values, y.values):
            first_pair, after = (x, y), before
        before = x.module
    one, two = first_pair or (None, None)
    return OutputDifference(one, two, after, tuple(growth))


def _paired(first: list[ModuleOutput], second: list[ModuleOutput]) -> Iterator[tuple[ModuleOutput, ModuleOutput]]:
    """Yield pairs of the i-th output of a module in the first model and its i-th output in the second.

    The pairs are in the order of the second model; outputs that only one model has are left out.
    """
    waiting: dict[str, list[ModuleOutput]] = {}
    for output in first:
        waiting.setdefault(output.module, []).append(output)
    for output in second:
        if waiting.get(output.module):
            yield waiting[output.module].pop(0), output
