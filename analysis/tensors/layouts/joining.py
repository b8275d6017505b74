"""Finds the codes and scales of quantised weights among tensors by their names, and joins them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fpsim.analysis.tensors.layouts.float_blocks import ELEMENTS, float_blocks
from fpsim.analysis.tensors.layouts.fp4_blocks import fp4_blocks
from fpsim.analysis.tensors.layouts.packed_integers import packed_columns, packed_rows
from fpsim.analysis.tensors.layouts.parts import LayoutError, WeightParts
from fpsim.analysis.tensors.tensor import Tensor

CONFIGURATIONS = ("config.json", "quantize_config.json")
CONFIGURATION_BYTES = 1 << 24


class CheckpointLayout(NamedTuple):
    """The names that one kind of checkpoint gives the tensors of a weight.

    `codes` ends the name of the codes, and `weight` takes its place in the weight's. `needed` and `more` name what lies
    beside the codes, by what its name ends in. `scales` are the dtypes that scales may have, of any where it is empty.
    """

    codes: str
    dtypes: tuple[str, ...]  # of the codes
    needed: Mapping[str, str]
    more: Mapping[str, str]
    join: Callable[[WeightParts], Tensor]
    weight: str
    source: str
    scales: tuple[str, ...] = ()


BYTES = tuple(ELEMENTS)
FLOAT8 = tuple(name for name in ELEMENTS if name.startswith("float8"))
NVFP4_LEVELS = {".weight_scale": "scale", ".weight_scale_2": "tensor_scale"}

# The first row whose codes and needed tensors are there is taken.
LAYOUTS: tuple[CheckpointLayout, ...] = (
    CheckpointLayout(
        ".qweight",
        ("int32",),
        {".scales": "scale", ".qzeros": "zero_point"},
        {".g_idx": "group"},
        packed_columns,
        ".weight",
        "GPTQ and AWQ",
    ),
    CheckpointLayout(
        ".weight_packed",
        ("int32",),
        {".weight_scale": "scale", ".weight_shape": "shape"},
        {".weight_zero_point": "zero_point", ".weight_g_idx": "group"},
        packed_rows,
        ".weight",
        "compressed-tensors, pack-quantized",
    ),
    CheckpointLayout(
        ".weight_packed",
        ("uint8",),
        {".weight_scale": "scale"},
        {".weight_global_scale": "tensor_divisor"},
        fp4_blocks,
        ".weight",
        "compressed-tensors, nvfp4-pack-quantized and mxfp4-pack-quantized",
    ),
    CheckpointLayout(".weight", ("uint8",), NVFP4_LEVELS, {}, fp4_blocks, ".weight", "ModelOpt, NVFP4"),
    CheckpointLayout(
        ".weight",
        ("uint8",),
        {".weight_scale": "scale"},
        {},
        fp4_blocks,
        ".weight",
        "ModelOpt, MXFP4",
        ("uint8", "float8_e8m0fnu", "float8_e4m3fn"),
    ),
    CheckpointLayout("_blocks", ("uint8",), {"_scales": "scale"}, {}, fp4_blocks, "", "gpt-oss, MXFP4"),
    CheckpointLayout(
        "._weight_qdata",
        ("uint8",),
        {"._weight_scale": "scale"},
        {"._weight_per_tensor_scale": "tensor_scale"},
        fp4_blocks,
        ".weight",
        "torchao, MXFP4 and NVFP4",
    ),
    CheckpointLayout(
        "._weight_qdata",
        BYTES,
        {"._weight_scale": "scale"},
        {"._weight_zero_point": "zero_point"},
        float_blocks,
        ".weight",
        "torchao, FP8, INT8 and MXFP8",
    ),
    CheckpointLayout(".weight", BYTES, {".weight_scale_inv": "scale"}, {}, float_blocks, ".weight", "DeepSeek-V3"),
    CheckpointLayout(
        ".weight",
        BYTES,
        {".weight_scale": "scale"},
        {".weight_zero_point": "zero_point"},
        float_blocks,
        ".weight",
        "compressed-tensors and ModelOpt",
    ),
    CheckpointLayout(".weight", FLOAT8, {".scale": "scale"}, {}, float_blocks, ".weight", "DeepSeek, later files"),
    CheckpointLayout("", FLOAT8, {"_scale_inv": "scale"}, {}, float_blocks, "", "transformers, experts in one tensor"),
    CheckpointLayout("", FLOAT8, {"_scale": "scale"}, {}, float_blocks, "", "transformers, experts in one tensor"),
)


def joined(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[str]]:
    """Return tensors with quantised weights in the place of their codes, and a line for each one left out.

    Example:
      >>> import numpy as np
      >>> from fpsim.analysis.tensors.opening import from_mapping
      >>> packed = {"up.weight": np.uint8([[0x21]]), "up.weight_scale": np.uint8([[128]])}
      >>> [one] = from_mapping(packed)[0]
      >>> one.name, one.dtype, [part.tolist() for part in one.chunks()]
      ('up.weight', 'E2M1 in 1x2 blocks', [[1.0, 2.0]])
    """
    if not any(one.left_out or one.dtype in FLOAT8 for one in tensors):
        return list(tensors), []
    files: dict[str, list[Tensor]] = {}
    for one in tensors:
        files.setdefault(one.source, []).append(one)
    found = _Joined({}, set(), [])
    for inside in files.values():
        found = found.with_weights({one.name: one for one in inside})
    # scales may lie in another shard than their codes; two files of one name tell nothing
    often = Counter(one.name for one in tensors)
    found = found.with_weights({one.name: one for one in tensors if often[one.name] == 1})
    kept: list[Tensor] = []
    notes = list(found.notes)
    for one in tensors:
        if id(one) in found.weights:
            kept.append(found.weights[id(one)])
        elif one.left_out and id(one) not in found.taken:
            notes.append(one.left_out)
        elif id(one) not in found.taken:
            kept.append(one)
    return kept, notes


class _Joined(NamedTuple):
    """Weights by the id of their codes, the ids of what they are made of, and a line for each that could not be."""

    weights: dict[int, Tensor]
    taken: set[int]
    notes: list[str]

    def with_weights(self, by_name: Mapping[str, Tensor]) -> _Joined:
        """Return the same with the weights among some tensors."""
        weights, taken, notes = dict(self.weights), set(self.taken), list(self.notes)
        settings: dict[str, Mapping[str, Any]] = {}
        for one in by_name.values():
            layout_of = None if id(one) in taken else _layout_of(one, by_name)
            if layout_of is None:
                continue
            layout, stem, beside = layout_of
            if one.source not in settings:
                settings[one.source] = _settings(Path(one.source).parent) if one.source else {}
            taken |= {id(one), *(id(part) for part in beside.values())}
            try:
                weights[id(one)] = layout.join(WeightParts(stem + layout.weight, one, beside, settings[one.source]))
            except LayoutError as problem:
                where = f"{one.source}: " if one.source else ""
                notes.append(f"{where}{one.name} left out, it holds codes ({layout.source}), and {problem}")
        return _Joined(weights, taken, notes)


def _layout_of(one: Tensor, by_name: Mapping[str, Tensor]) -> tuple[CheckpointLayout, str, dict[str, Tensor]] | None:
    """Return the layout of a tensor of codes, the name without its end, and what lies beside it."""
    for layout in LAYOUTS:
        if one.dtype not in layout.dtypes or not one.name.endswith(layout.codes):
            continue
        stem = one.name.removesuffix(layout.codes)
        wanted = [end for end, key in layout.needed.items() if key == "scale"]
        if all(stem + end in by_name for end in layout.needed) and all(
            not layout.scales or by_name[stem + end].dtype in layout.scales for end in wanted
        ):
            ends = {**layout.needed, **layout.more}
            return layout, stem, {key: by_name[stem + end] for end, key in ends.items() if stem + end in by_name}
    return None


def _settings(folder: Path) -> Mapping[str, Any]:
    """Return what the configuration beside a file says of its quantisation."""
    for name in CONFIGURATIONS:
        try:
            path = folder / name
            if path.stat().st_size > CONFIGURATION_BYTES:
                continue
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        inner = content.get("quantization_config", content) if isinstance(content, dict) else None
        if isinstance(inner, dict) and ("quant_method" in inner or "bits" in inner):
            return inner
    return {}
