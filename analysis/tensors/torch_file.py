"""Tensors of torch: files that torch.save writes, and tensors in memory, as NumPy chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.chunks import Array
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from fpsim.display.optional import load

# torch's names of floats that NumPy arrays of torch cannot hold -> (integer view, dtype).
VIEWS: dict[str, tuple[str, Any]] = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
    "float8_e4m3fnuz": ("uint8", ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2fnuz": ("uint8", ml_dtypes.float8_e5m2fnuz),
    "float8_e8m0fnu": ("uint8", ml_dtypes.float8_e8m0fnu),
}
PLAIN = ("float16", "float32", "float64")


def read_torch(path: Path) -> tuple[list[Tensor], list[str]]:
    """The float tensors of a torch file, names of nested containers joined with dots; nothing is unpickled but tensors.

    Raises:
      TensorFileError: damaged, or it holds other objects than tensors and containers.
      ImportError: torch is not installed.
    """
    torch = load("torch", f"reading {path.suffix} files")
    try:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as problem:
            if "mmap" not in str(problem):
                raise
            content = torch.load(path, map_location="cpu", weights_only=True)  # torch's format before 1.6
    except Exception as problem:  # torch raises many kinds for damaged files
        if "weights_only" in str(problem).lower() or "Unsupported" in str(problem):
            fault = "holds pickled objects; save tensors alone: torch.save(model.state_dict(), ...)"
        else:
            fault = "damaged or not a file of torch.save"
        raise TensorFileError(f"{path}: {fault}") from problem
    tensors: list[Tensor] = []
    notes: list[str] = []
    for name, x in _flatten(content, "", path.stem):
        if not isinstance(x, torch.Tensor):
            continue
        dtype = str(x.dtype).removeprefix("torch.")
        if x.layout != torch.strided or x.is_quantized or x.device.type != "cpu" or dtype not in (*VIEWS, *PLAIN):
            notes.append(
                f"{path}: {name} left out, it holds {dtype}" + ("" if x.layout == torch.strided else ", sparse")
            )
            continue
        tensors.append(torch_tensor(name, x, str(path)))
    return tensors, notes


def _flatten(content: Any, prefix: str, alone: str) -> Iterator[tuple[str, Any]]:
    """(name, leaf) of nested mappings and sequences; `alone` names a leaf without a container."""
    stack = [(prefix, content)]
    while stack:
        name, item = stack.pop()
        if isinstance(item, Mapping):
            inner = [(str(key), value) for key, value in item.items()]
        elif isinstance(item, (list, tuple)):
            inner = [(str(i), value) for i, value in enumerate(item)]
        else:
            yield name or alone, item
            continue
        stack += [(f"{name}.{key}" if name else key, value) for key, value in reversed(inner)]


def torch_tensor(name: str, x: Any, source: str = "") -> Tensor:
    """A dense float tensor of torch; non-contiguous ones are read in the order of memory where they fill it.

    Raises:
      TypeError: it does not hold floats that fpsim rounds.
    """
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in (*VIEWS, *PLAIN):
        raise TypeError(f"{name} must be a tensor of floats; got {x.dtype}. Convert with {name}.float().")

    def read(size: int) -> Iterator[Array]:
        flat = x.permute(sorted(range(x.ndim), key=lambda axis: -x.stride(axis))).reshape(-1)
        for start in range(0, flat.shape[0], size):
            yield _to_numpy(flat[start : start + size], dtype)

    shape = tuple(int(n) for n in x.shape)
    assert math.prod(shape) == x.numel()
    return Tensor(name, shape, dtype, read, source)


def _to_numpy(x: Any, dtype: str) -> Array:
    """A contiguous 1-d tensor as an array on the same memory."""
    x = x.detach().cpu().contiguous()
    if dtype in PLAIN:
        return np.asarray(x.numpy())
    import torch

    integer, target = VIEWS[dtype]
    return np.asarray(x.view(getattr(torch, integer)).numpy()).view(target)
