"""Activations that wait for the backward pass: stored in a format, stored in files, or computed again."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fpsim.errors import shown
from fpsim.files import path_of, sweep
from fpsim.recipes.cast_text import spec_text
from fpsim.recipes.parts import Stored
from fpsim.torch.operators import Tensor, quantize_op, torch
from fpsim.torch.trace import hidden
from fpsim.train.settings import Recompute, whole_blocks

nn: Any = torch.nn
Function: Any = torch.autograd.Function
Stash = Callable[[Tensor], Tensor]  # returns the tensor that is saved for the backward pass in place of its argument
PREFIX = "fpsim-activations-"


# ---- in a format


class Storing(nn.Module):  # type: ignore[misc]
    """A module whose activations a recipe may store in a low-precision format until the backward pass."""

    def store(self, stash: Stash) -> None:
        """Make the module save `stash(x)` for the backward pass instead of each activation x.

        stash: a function from a tensor to a tensor of its shape and dtype, such as `quantizer` returns. Activations are
        float tensors with two axes or more, the last longer than 1. Parameters are saved unrounded, and so are
        statistics of rows, whose last axis has one element.
        """
        module: Any = self
        inner = module.forward

        def pack(x: Tensor) -> Tensor:
            activations = x.is_floating_point() and x.dim() >= 2 and x.shape[-1] > 1
            return stash(x) if activations and not isinstance(x, nn.Parameter) else x

        def forward(*arguments: Any) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                return inner(*arguments)

        module.forward = forward


def quantizer(spec: str) -> Stash:
    """Return a function that rounds a tensor to a format, and returns the values in the tensor's own dtype.

    spec: the cast (format, scaling, rounding) as the text that `fpsim.recipes.cast_text.spec_text` returns. Tiles are
    over the tensor's last two axes.
    """
    return lambda x: quantize_op(x.detach(), spec, None, None).to(x.dtype)


def store_activations(model: Any, row: Stored) -> None:
    """Make some modules of a model save their activations for the backward pass in a format.

    model: a torch module, changed in place. row: the shell pattern of the modules' names, the format and the scaling.
    Only modules of the class `Storing` are changed.
    """
    spec = spec_text(row.fmt, row.scaling, "nearest_even", None, "keep", 32)
    for name, module in model.named_modules():
        if isinstance(module, Storing) and fnmatchcase(name, row.modules):
            module.store(quantizer(spec))


# ---- computed again: whole blocks


def recompute_block(block: Any) -> None:
    """Make a module save only its input for the backward pass, which runs the module's forward pass again.

    block: a torch module, whose `forward` is replaced. Both runs draw the same random numbers and use the same delayed
    scales, because only the second run, in which gradients are enabled, advances step counters and scales. Functions
    passed to `fpsim.torch.trace.watching` are not called in the second run.
    """
    inner = block.forward

    def forward(x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return inner(x)  # type: ignore[no-any-return]
        trained = torch.empty(0, requires_grad=True)  # makes torch compute gradients of the result even if x needs none
        result: Tensor = _Recomputed.apply(x, trained, inner)
        return result

    block.forward = forward


class _Recomputed(Function):  # type: ignore[misc]
    """The torch function run(x) that saves only x; its backward pass calls `run` again to compute gradients.

    trained: an empty tensor that requires a gradient, so that the backward pass is run even if x needs no gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, trained: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None]:
        (kept,) = ctx.saved_tensors
        x = kept.detach().requires_grad_(ctx.needs_input_grad[0])
        with torch.enable_grad(), hidden():
            y = ctx.run(x)
        torch.autograd.backward(y, dy)
        return x.grad, None, None


# ---- computed again: the layers of a model


def blocks_of(model: Any) -> list[Any]:
    """Return the blocks of a `Transformer`, or [model] for a `Perceptron`, which counts as one block."""
    return list(getattr(model, "blocks", [model]))


def apply_recompute(model: Any, recompute: Recompute) -> None:
    """Make whole blocks of a model, or slices of its layers, compute their activations again in the backward pass.

    model: a `Transformer` or `Perceptron`, changed in place. recompute: if its `by` is "layer", the number of first
    blocks that are computed again whole; else the layers, and the axis and number of slices.

    Raises:
      ValueError: the model lacks a named layer, or a layer to recompute reads the result of another such layer.
    """
    blocks = blocks_of(model)
    for block in blocks[: recompute.blocks(len(blocks))] if recompute.by == "layer" else ():
        recompute_block(block)
    layers = [name.removesuffix(".linear") for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    named = recompute.named(layers, len(blocks))
    if "head" in named and {"first", "second"} & set(named):
        raise ValueError(
            "layers of recompute must be the perceptron's head, or first and second, not both: recomputing the head "
            f"reads a result that recomputing the others discards; got {named}."
        )
    for name in named:
        owner, _, layer = name.rpartition(".")
        model.get_submodule(owner).sliced[layer] = recompute


# ---- in files


@dataclass
class Traffic:
    """The bytes that offloading has moved.

    Attributes:
      written, read: bytes written to files and read from them since the trainer was created.
      held: bytes of the files that exist now.
      most: the largest value that `held` has had.
    """

    written: int = 0
    read: int = 0
    held: int = 0
    most: int = 0


@dataclass(frozen=True)
class OffloadedTensor:
    """The path of a file that holds a tensor, with the shape, strides and dtype that the loaded tensor has."""

    path: Path
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


@dataclass
class Offload:
    """A folder of files that hold activations; the folder is removed with the object.

    A loaded tensor has the strides of the stored one (contiguous strides if that had gaps), because torch's kernels may
    choose their order of additions by strides. A file is removed when the last reference to its `OffloadedTensor` is
    deleted. A tensor that two operations save is written to two files.

    Args:
      folder: the folder in which a new folder for the files is made; None for the system's folder of temporary files.
      traffic: the counts of bytes that `store` and `load` update.

    Raises:
      OSError: a file cannot be written, for example because the disk is full.

    Example:
      >>> import torch
      >>> from fpsim.train.activations import Offload
      >>> offload, x = Offload(), torch.arange(6.0).reshape(2, 3).T
      >>> again = offload.load(offload.store(x))
      >>> torch.equal(again, x), again.stride() == x.stride(), offload.traffic.read
      (True, True, 24)
    """

    folder: Any = None
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        parent = Path(tempfile.gettempdir()) if self.folder is None else path_of(self.folder, "folder")
        sweep(parent, f"{PREFIX}*")  # what killed processes left
        self._room = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        weakref.finalize(self, shutil.rmtree, self._room, ignore_errors=True)
        self._count = 0

    def store(self, x: Tensor) -> OffloadedTensor:
        """Write a tensor to a new file, and return the object by which `load` reads it; add its bytes to `traffic`."""
        path = self._room / f"{self._count}"
        self._count += 1
        content = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        content.tofile(path)
        self.traffic.written += content.nbytes
        self.traffic.held += content.nbytes
        self.traffic.most = max(self.traffic.most, self.traffic.held)
        strides = x.stride() if _is_dense(x) else x.contiguous().stride()
        kept = OffloadedTensor(path, tuple(x.shape), tuple(strides), x.dtype)
        weakref.finalize(kept, _drop, path, content.nbytes, self.traffic)
        return kept

    def load(self, kept: OffloadedTensor) -> Tensor:
        """Return a stored tensor, read from its file; raise a ValueError if the file's size has changed.

        kept: the object that `store` returned. The bytes read are added to `traffic`.
        """
        content = torch.empty(kept.shape, dtype=kept.dtype)
        data = bytearray(kept.path.read_bytes())
        if len(data) != content.numel() * content.element_size():
            raise ValueError(f"{shown(str(kept.path))} must hold the activation that was written; it was changed.")
        self.traffic.read += len(data)
        flat = torch.frombuffer(data, dtype=kept.dtype) if data else content.reshape(-1)
        tensor = torch.empty_strided(kept.shape, kept.strides, dtype=kept.dtype)
        tensor.copy_(flat.reshape(kept.shape))
        return tensor


def _drop(path: Path, count: int, traffic: Traffic) -> None:
    """Remove the file of a tensor, and subtract its `count` bytes from `traffic.held`."""
    path.unlink(missing_ok=True)
    traffic.held -= count


def _is_dense(x: Tensor) -> bool:
    """Return whether a tensor's elements fill one range of memory without gaps or overlaps, in any order of axes."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def offload_block(block: Any, offload: Offload) -> None:
    """Make a torch module (`block`) save in files what its backward pass needs, by replacing its `forward`.

    offload: the folder of the files. Parameters, buffers, tensors without axes and tensors that are not on the CPU stay
    in memory.
    """
    inner = block.forward
    held = {x.untyped_storage().data_ptr() for x in (*block.parameters(), *block.buffers())}

    def pack(x: Tensor) -> Any:
        stays = x.untyped_storage().data_ptr() in held or x.dim() == 0 or x.device.type != "cpu"
        return x if stays else offload.store(x)

    def unpack(x: Any) -> Tensor:
        return x if isinstance(x, Tensor) else offload.load(x)

    def forward(*arguments: Any) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            result: Tensor = inner(*arguments)
        return result

    block.forward = forward


def apply_offload(model: Any, share: float) -> Traffic | None:
    """Make a model's first blocks save their activations in files; return the counts of bytes, or None if `share` is 0.

    model: a `Transformer` or `Perceptron`, changed in place. share: the share of the blocks, 0 to 1, rounded up to
    whole blocks.
    """
    if not share:
        return None
    blocks, offload = blocks_of(model), Offload()
    for block in blocks[: whole_blocks(share, len(blocks))]:
        offload_block(block, offload)
    return offload.traffic
