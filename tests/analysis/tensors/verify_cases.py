"""Copies of files of libraries that tests of verification change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fpsim.analysis.tensors.files import read_stored, safetensors_metadata
from tests.analysis.tensors.test_layouts import ROWS, WEIGHT, file_of, safetensors

Arrays = dict[str, np.ndarray[Any, Any]]


PREFIX = WEIGHT.removesuffix("weight")


def copied(layout: str, folder: Path, change: Callable[[Arrays], None] | None = None, **settings: Any) -> Path:
    """Write a library's file anew with changes, its configuration beside it; names are those in the module."""
    source = folder / "source"
    source.mkdir()
    path = file_of(layout, source)
    if layout == "gguf":
        return path
    prefix = PREFIX if "gpt_oss" not in layout else WEIGHT.removesuffix("up_proj.weight") + "experts.gate_up_proj"
    arrays: Arrays = {
        one.name.removeprefix(prefix): np.concatenate([*one.chunks()]).reshape(one.shape).copy()
        for one in read_stored(path)[0]
    }
    if change is not None:
        change(arrays)
    whole = {prefix + name: array for name, array in arrays.items()}
    metadata = safetensors_metadata(path) | {key: settings.pop(key) for key in list(settings) if key == WEIGHT}
    target = folder / "model"
    target.mkdir()
    safetensors(target / "model.safetensors", whole, metadata)
    config = {key: value for key, value in {**ROWS[layout]["config"], **settings}.items() if value is not None}
    (target / "config.json").write_text(json.dumps({"quantization_config": config}))
    return target


def mapped(name: str, function: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    """Return a change of a whole tensor."""

    def change(arrays: Arrays) -> None:
        arrays[name] = np.ascontiguousarray(function(arrays[name]))

    return change
