"""Offloading: activations wait in files for the backward pass, and each is loaded when it is needed."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fpsim.errors import shown
from fpsim.files import path_of, sweep
from fpsim.torch.operators import Tensor, torch
from fpsim.train.activations.recomputation import whole_blocks

PREFIX = "fpsim-activations-"


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
      >>> from fpsim.train.activations.offloading import Offload
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
