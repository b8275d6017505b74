"""Files of tensors that several tests write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fpsim.analysis.tensors.files import SAFETENSORS_DTYPES, read_file
from fpsim.analysis.tensors.tensor import Tensor


def write_safetensors(
    path: Path, arrays: dict[str, Any], header: dict[str, Any] | None = None, tail: bytes = b""
) -> Path:
    """A file as the format's description says, without the library; `header` replaces entries."""
    names = {np.dtype(dtype): name for name, dtype in SAFETENSORS_DTYPES.items()} | {np.dtype("int64"): "I64"}
    entries: dict[str, Any] = {}
    data = b""
    for name, x in arrays.items():
        offsets = [len(data), len(data) + x.nbytes]
        entries[name] = {"dtype": names[x.dtype], "shape": list(x.shape), "data_offsets": offsets}
        data += x.tobytes()
    text = json.dumps(entries | (header or {})).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data + tail)
    return path


def only(path: Path) -> Tensor:
    tensors, _ = read_file(path)
    assert len(tensors) == 1
    return tensors[0]


def nested(x: Any, width: int, depth: int) -> Any:
    """Lists in lists that hold x `width ** depth` times and take a few bytes each."""
    for _ in range(depth):
        x = [x] * width
    return x
