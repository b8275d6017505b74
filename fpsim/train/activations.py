"""Activations that wait for the backward pass in a format or in files, or that are computed again there."""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fpsim.errors import shown
from fpsim.files import path_of, sweep
from fpsim.recipes.cast_text import spec_text
from fpsim.recipes.parts import Stored
from fpsim.torch.operators import Tensor, quantize_op, torch
from fpsim.torch.replay import ProductReplay, cut_whole
from fpsim.torch.trace import hidden
from fpsim.train.settings import Recompute, whole_blocks

nn: Any = torch.nn
Function: Any = torch.autograd.Function
Stash = Callable[[Tensor], Tensor]  # what waits for the backward pass in place of a tensor
PREFIX = "fpsim-activations-"


# ---- in a format


class Storing(nn.Module):  # type: ignore[misc]
    """A module whose activations a recipe may keep in a format."""

    def store(self, stash: Stash) -> None:
        """Keep `stash(x)` of each activation x for the backward pass; weights and row statistics stay as they are."""
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
    """Return a function that quantises a tensor over its last two axes, by a cast described as text."""
    return lambda x: quantize_op(x.detach(), spec, None, None).to(x.dtype)


def store_activations(model: Any, row: Stored) -> None:
    """Make the modules that a `Stored` names keep their activations for the backward pass in its format."""
    spec = spec_text(row.fmt, row.scaling, "nearest_even", None, "keep", 32)
    for name, module in model.named_modules():
        if isinstance(module, Storing) and fnmatchcase(name, row.modules):
            module.store(quantizer(spec))


# ---- computed again: whole blocks


def recompute_block(block: Any) -> None:
    """Make a module keep only its input for the backward pass, and compute the rest again there.

    Its layers draw the same random numbers and use the same delayed scales in both runs, since counts of steps and
    scales move in the second one alone, where gradients are on. Products of the second run are shown to no watcher.
    """
    inner = block.forward

    def forward(x: Tensor) -> Tensor:
        result: Tensor = _Recomputed.apply(x, inner) if torch.is_grad_enabled() else inner(x)
        return result

    block.forward = forward


class _Recomputed(Function):  # type: ignore[misc]
    """A torch function that keeps only its input, and runs once more in the backward pass to get its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None]:
        (kept,) = ctx.saved_tensors
        x = kept.detach().requires_grad_()
        with torch.enable_grad(), hidden():
            y = ctx.run(x)
        torch.autograd.backward(y, dy)
        return x.grad, None


# ---- computed again: slices of the product in front of SwiGLU


class SlicedHidden:
    """The result of the layer before SwiGLU, which is not kept but computed again in slices.

    Args:
      replay: the layer's forward product.
      shape: the shape of the result, (..., 2 * hidden).
      recompute: the kind and number of slices.
      factor: what the result is multiplied by after the product.
    """

    def __init__(self, replay: ProductReplay, shape: Any, recompute: Recompute, factor: float = 1.0) -> None:
        self.replay, self.shape, self.recompute, self.factor = replay, tuple(shape), recompute, factor

    def parts(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield, for each slice, the rows and columns of gate and up, and the values of both, (rows, columns)."""
        rows, width = math.prod(self.shape[:-1]), self.shape[-1] // 2
        by, slices = self.recompute.by, self.recompute.slices
        every_row, every_column = slice(0, rows), slice(0, width)
        if by == "k":
            gate, up = self._times(self.replay.over_terms(slices)).chunk(2, -1)
            yield every_row, every_column, gate, up
        elif by == "m":
            for part in cut_evenly(rows, slices, self.replay.row_tile):
                gate, up = self._times(self.replay.part(part, slice(0, 2 * width))).chunk(2, -1)
                yield part, every_column, gate, up
        else:
            for part in cut_evenly(width, slices, self.replay.column_tile):
                gate = self._times(self.replay.part(every_row, part))
                up = self._times(self.replay.part(every_row, slice(width + part.start, width + part.stop)))
                yield every_row, part, gate, up
        self.replay.forget()

    def _times(self, x: Tensor) -> Tensor:
        return x if self.factor == 1.0 else x * self.factor


def cut_evenly(length: int, slices: int, tile: int = 1) -> list[slice]:
    """Divide a length into slices that consist of whole tiles, or that are each within one tile.

    Raises:
      ValueError: there are fewer elements than slices, or slices would cross the edge of a tile.

    Example:
      >>> from fpsim.train.activations import cut_evenly
      >>> cut_evenly(128, 4, 128)[1]
      slice(32, 64, None)
    """
    tiles = -(-length // tile)
    if slices <= tiles:
        return cut_whole(length, slices, tile)
    per_tile = -(-slices // tiles)  # slices of a tile
    if slices % tiles or tile % per_tile or length % tile:
        raise ValueError(
            f"slices must be at most {tiles}, the tiles of {tile} that share a scale along {length} elements, or "
            f"divide each of them evenly; got {slices}."
        )
    size = tile // per_tile
    return [slice(i * size, (i + 1) * size) for i in range(slices)]


def apply_recompute(model: Any, recompute: Recompute) -> None:
    """Make the first blocks of a transformer compute activations again, as `recompute` says.

    Raises:
      ValueError: a model without blocks.
    """
    if not recompute.share:
        return
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        raise ValueError(
            f"recompute is for the transformer, whose blocks are computed again; got it for a {type(model).__name__}. "
            "Leave it out."
        )
    for index in range(recompute.blocks(len(blocks))):
        if recompute.by == "layer":
            recompute_block(blocks[index])
            continue
        blocks[index].mlp.recompute = recompute


def sliced_hidden(gate_up: Any, x: Tensor, recompute: Recompute) -> SlicedHidden:
    """Return an object that recomputes a layer's result in slices; call this before the layer, which counts a step.

    Args:
      gate_up: the layer, or a `UnitLinear` around it.
      x: its input, (..., features).
    """
    layer = getattr(gate_up, "linear", gate_up)
    factor = 1.0 if layer is gate_up else layer.in_features**-0.5
    return SlicedHidden(ProductReplay(layer, x), (*x.shape[:-1], layer.out_features), recompute, factor)


# ---- in files


@dataclass
class Traffic:
    """The bytes that offloading moved.

    Attributes:
      written, read: bytes, since the trainer was made.
      held: bytes of the files that there are now.
      most: the largest that `held` was.
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

    Strides come back as they were, so that torch's kernels, whose order of addition may follow them, have the same
    bits. A file is removed with the last reference to its tensor. A tensor that two operations keep has two files.

    Args:
      folder: the folder in which a new folder for the files is made; None is the system's for temporary files.

    Raises:
      OSError: a file cannot be written, say because the disk is full.

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
        """Write a tensor to a new file, and return what `load` needs to read it."""
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
        """Read a stored tensor from its file."""
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
    """Remove the file of a tensor, and subtract its bytes from those held."""
    path.unlink(missing_ok=True)
    traffic.held -= count


def _is_dense(x: Tensor) -> bool:
    """Return whether the elements of a tensor are in memory without gaps or overlaps, in any order of the axes."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def offload_block(block: Any, offload: Offload) -> None:
    """Make a module save tensors for backward in files; parameters, buffers and single numbers stay in memory."""
    inner = block.forward
    held = {x.untyped_storage().data_ptr() for x in (*block.parameters(), *block.buffers())}

    def pack(x: Tensor) -> Any:
        stays = x.untyped_storage().data_ptr() in held or x.dim() == 0 or x.device.type != "cpu"
        return x if stays else offload.store(x)

    def unpack(x: Any) -> Tensor:
        return x if isinstance(x, Tensor) else offload.load(x)

    def forward(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            result: Tensor = inner(x)
        return result

    block.forward = forward


def apply_offload(model: Any, share: float) -> Traffic | None:
    """Move the activations of a transformer's first blocks into files, and return the traffic.

    Raises:
      ValueError: a model without blocks.
    """
    if not share:
        return None
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        raise ValueError(
            f"offload is for the transformer, whose blocks' activations go to files; got it for a "
            f"{type(model).__name__}. Leave it out."
        )
    offload = Offload()
    for block in blocks[: whole_blocks(share, len(blocks))]:
        offload_block(block, offload)
    return offload.traffic
