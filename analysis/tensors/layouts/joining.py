"""Quantised weights among stored tensors: codes and their scales are found by name, and joined into one tensor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fpsim.analysis.tensors.layouts import naming
from fpsim.analysis.tensors.layouts.bitsandbytes import int8_rows, table_blocks
from fpsim.analysis.tensors.layouts.float_blocks import ELEMENTS, float_blocks
from fpsim.analysis.tensors.layouts.fp4_blocks import fp4_blocks, packed_pairs
from fpsim.analysis.tensors.layouts.hqq import hqq_groups
from fpsim.analysis.tensors.layouts.packed_integers import packed_columns, packed_rows
from fpsim.analysis.tensors.layouts.parts import LayoutError, WeightParts
from fpsim.analysis.tensors.tensor import Tensor

CONFIGURATIONS = ("config.json", "quantize_config.json", "hf_quant_config.json")
CONFIGURATION_BYTES = 1 << 24


class CheckpointLayout(NamedTuple):
    """A layout of quantised weights: the names of its tensors, and the function that makes a weight of them.

    Attributes:
      codes: the end of the name of the codes.
      dtypes: dtypes that the codes may have.
      needed: end of the name of each tensor that must accompany the codes -> its key in `WeightParts.beside`.
      join: function (WeightParts) -> the weight made of these parts, a Tensor that is decoded when it is read; it
        raises a LayoutError if they do not fit each other.
      source: the libraries that write the layout.
      named: function (WeightParts, the weight) -> name of the layout, such as "gptq_v2".
      more: like `needed`, for tensors that may accompany the codes.
      weight: end of the weight's name, which replaces `codes`.
      scales: dtypes that scales may have; () for any.
      exchanged: whether the unquantised model has the last two axes in the other order.
      minus_zero: whether the library reads the code of -0 as -0, and not as +0.
    """

    codes: str
    dtypes: tuple[str, ...]
    needed: Mapping[str, str]
    join: Callable[[WeightParts], Tensor]
    source: str
    named: Callable[[WeightParts, Tensor], str]
    more: Mapping[str, str] = MappingProxyType({})
    weight: str = ".weight"
    scales: tuple[str, ...] = ()
    exchanged: bool = False
    minus_zero: bool = True


BYTES = tuple(ELEMENTS)
FLOAT8 = tuple(name for name in ELEMENTS if name.startswith("float8"))
TAILS = ("weight", "weight_packed", "qweight", "_weight_qdata", "W_q")  # names of codes inside their layer
NESTED = {".weight.nested_absmax": "nested_scale", ".weight.nested_quant_map": "nested_table"}
HQQ_SETTINGS = (
    "axis", "group_size", "nbits", "channel_wise", "compute_dtype", "encoded_state_dict", "offload_meta", "optimize",
    "quant_scale", "quant_zero", "round_zero", "stores_quant_config", "unpack_view_dtype", "view_as_float", "packing",
)  # fmt: skip

# The first row whose codes and needed tensors exist is taken.
LAYOUTS: tuple[CheckpointLayout, ...] = (
    CheckpointLayout(
        ".qweight", ("int32",), {".scales": "scale", ".qzeros": "zero_point"}, packed_columns, "GPTQ and AWQ",
        naming.gptq_or_awq, {".g_idx": "group"}, exchanged=True),
    CheckpointLayout(
        ".weight_packed", ("int32",), {".weight_scale": "scale", ".weight_shape": "shape"}, packed_rows,
        "compressed-tensors, pack-quantized", naming.packed_integers,
        {".weight_zero_point": "zero_point", ".weight_g_idx": "group"}),
    CheckpointLayout(
        ".weight_packed", ("uint8",), {".weight_scale": "scale"}, fp4_blocks,
        "compressed-tensors, nvfp4-pack-quantized and mxfp4-pack-quantized",
        partial(naming.fp4, library="compressed-tensors"),
        {".weight_global_scale": "tensor_divisor"}),
    CheckpointLayout(
        ".weight", ("uint8",), {".weight_scale": "scale", ".weight_scale_2": "tensor_scale"}, fp4_blocks,
        "ModelOpt, NVFP4", partial(naming.fp4, library="modelopt"), minus_zero=False),
    CheckpointLayout(
        ".weight", ("uint8",), {".weight_scale": "scale"}, fp4_blocks, "ModelOpt, MXFP4",
        partial(naming.fp4, library="modelopt"), scales=("uint8", "float8_e8m0fnu", "float8_e4m3fn")),
    CheckpointLayout(
        "_blocks", ("uint8",), {"_scales": "scale"}, fp4_blocks, "gpt-oss, MXFP4", lambda *_: "mxfp4",
        weight="", exchanged=True),
    CheckpointLayout(
        "._weight_qdata", ("uint8",), {"._weight_scale": "scale"}, fp4_blocks, "torchao, MXFP4 and NVFP4",
        partial(naming.fp4, library="torchao"), {"._weight_per_tensor_scale": "tensor_scale"}),
    CheckpointLayout(
        "._weight_qdata", BYTES, {"._weight_scale": "scale"}, float_blocks, "torchao, FP8, INT8 and MXFP8",
        naming.torchao, {"._weight_zero_point": "zero_point"}),
    *(CheckpointLayout(
        ".weight", ("uint8", "bfloat16", "float16", "float32"),
        {".weight.absmax": "scale", ".weight.quant_map": "table",
         f".weight.quant_state.bitsandbytes__{kind}": "state"},
        table_blocks, f"bitsandbytes, {kind.upper()}", naming.bitsandbytes, NESTED) for kind in ("nf4", "fp4")),
    CheckpointLayout(
        ".weight", ("int8",), {".SCB": "scale"}, int8_rows, "bitsandbytes, INT8", naming.bitsandbytes,
        {".weight_format": "format"}),
    CheckpointLayout(
        ".W_q", ("uint8",), {".scale": "scale", ".zero": "zero_point", ".shape": "shape"}, hqq_groups, "HQQ",
        naming.hqq, {f".{name}": name for name in HQQ_SETTINGS}),
    CheckpointLayout(
        ".weight", BYTES, {".weight_scale_inv": "scale"}, packed_pairs, "DeepSeek-V3", naming.deepseek),
    CheckpointLayout(
        ".weight", BYTES, {".weight_scale": "scale"}, float_blocks, "compressed-tensors and ModelOpt",
        naming.one_byte, {".weight_zero_point": "zero_point"}),
    CheckpointLayout(
        ".weight", FLOAT8, {".scale": "scale"}, float_blocks, "DeepSeek, later files", naming.deepseek),
    CheckpointLayout(
        ".weight", ("int8",), {".scale": "scale"}, packed_pairs, "DeepSeek, later files", naming.deepseek,
        scales=("float8_e8m0fnu",)),
    *(CheckpointLayout(
        "", FLOAT8, {end: "scale"}, float_blocks, "transformers, experts in one tensor", naming.deepseek,
        weight="") for end in ("_scale_inv", "_scale")),
)  # fmt: skip


class Recognised(NamedTuple):
    """A quantised weight that was recognised among stored tensors, with its layout.

    Attributes:
      layout: the names of the weight's tensors, and the function that joins them (a CheckpointLayout).
      parts: the stored tensors of the weight, with the settings of the configuration file in the folder of the codes.
      weight: the weight that they represent; None if they do not fit each other.
      problem: the reason why they do not fit; "" if they do.
    """

    layout: CheckpointLayout
    parts: WeightParts
    weight: Tensor | None
    problem: str

    @property
    def decoded(self) -> Tensor:
        """The weight as a Tensor; only for a weight whose stored tensors fit each other (`weight` is not None)."""
        assert self.weight is not None
        return self.weight

    @property
    def taken(self) -> set[int]:
        """Ids (by `id`) of the stored tensors that make up the weight."""
        return {id(self.parts.codes), *(id(part) for part in self.parts.beside.values())}


def joined(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[str]]:
    """Return (tensors, notes): stored tensors with codes and scales replaced by the weights that they represent.

    A note is a sentence on a tensor that is left out, with the reason.

    Example:
      >>> import numpy as np
      >>> from fpsim.analysis.tensors.opening import from_mapping
      >>> packed = {"up.weight": np.uint8([[0x21]]), "up.weight_scale": np.uint8([[128]])}
      >>> [one] = from_mapping(packed)[0]
      >>> one.name, one.dtype, [part.tolist() for part in one.chunks()]
      ('up.weight', 'E2M1 in 1x2 blocks', [[1.0, 2.0]])
    """
    recognised_weights = recognised(tensors)
    weights = {id(one.parts.codes): one.weight for one in recognised_weights if one.weight is not None}
    taken = {part for one in recognised_weights for part in one.taken}
    kept: list[Tensor] = []
    notes: list[str] = []
    for one in recognised_weights:
        if one.problem:
            codes = one.parts.codes
            where = f"{codes.source}: " if codes.source else ""
            notes.append(f"{where}{codes.name} left out, it holds codes ({one.layout.source}), and {one.problem}")
    for tensor in tensors:
        if id(tensor) in weights:
            kept.append(weights[id(tensor)])
        elif tensor.left_out and id(tensor) not in taken:
            notes.append(tensor.left_out)
        elif id(tensor) not in taken:
            kept.append(tensor)
    return kept, notes


def recognised(tensors: Sequence[Tensor]) -> list[Recognised]:
    """Return the quantised weights among stored tensors, each with the stored tensors that make it up.

    Codes are joined with scales of the same file, or if it lacks them, with scales of another file. Only tensors whose
    name occurs in a single file are joined across files.
    """
    if not any(one.left_out or one.dtype in FLOAT8 for one in tensors):
        return []
    files: dict[str, list[Tensor]] = {}
    for one in tensors:
        files.setdefault(one.source, []).append(one)
    weights: list[Recognised] = []
    taken: set[int] = set()
    settings: dict[str, Mapping[str, Any]] = {}
    # scales may be in another shard than their codes, unless two shards have the name
    often = Counter(one.name for one in tensors)
    unique = [one for one in tensors if often[one.name] == 1]
    for inside in (*files.values(), unique):
        by_name = {one.name: one for one in inside}
        for one in inside:
            match = None if id(one) in taken else _layout_of(one, by_name)
            if match is None:
                continue
            if one.source not in settings:
                settings[one.source] = settings_of(Path(one.source).parent) if one.source else {}
            layout, stem, beside = match
            name = f"{stem}{layout.weight}".removeprefix(".")
            parts = WeightParts(name, one, beside, settings[one.source], layout.minus_zero)
            weights.append(_joined(layout, parts))
            taken |= weights[-1].taken
    return weights


def _joined(layout: CheckpointLayout, parts: WeightParts) -> Recognised:
    """Return the weight that `layout` makes of the stored tensors `parts`.

    If they do not fit each other, the result has no weight, and its field `problem` says why.
    """
    try:
        weight = layout.join(parts)
    except LayoutError as problem:
        return Recognised(layout, parts, None, str(problem))
    exchanged = layout.exchanged and (layout.join is not fp4_blocks or len(weight.shape) == 3)  # gpt-oss's experts
    named = replace(weight, layout=layout.named(parts, weight), exchanged=exchanged)
    return Recognised(layout, parts, named, "")


def _layout_of(one: Tensor, by_name: Mapping[str, Tensor]) -> tuple[CheckpointLayout, str, dict[str, Tensor]] | None:
    """Return (layout, prefix of the name, key -> accompanying tensor) for a tensor of codes; None if no layout fits.

    `by_name`: the tensors of the same file. The prefix is the weight's name without its end, such as "layers.0.up". It
    is "" if the names have no prefix, as in the file of a single layer, whose tensor of codes may be called "weight".
    """
    name = one.name if "." in one.name or not one.name.endswith(TAILS) else f".{one.name}"
    for layout in LAYOUTS:
        if one.dtype not in layout.dtypes or not name.endswith(layout.codes):
            continue
        stem = name.removesuffix(layout.codes)

        def beside(end: str, stem: str = stem) -> Tensor | None:
            return by_name.get(f"{stem}{end}".removeprefix("."))

        wanted = [beside(end) for end, key in layout.needed.items() if key == "scale"]
        if all(beside(end) is not None for end in layout.needed) and all(
            not layout.scales or (scale is not None and scale.dtype in layout.scales) for scale in wanted
        ):
            ends = {**layout.needed, **layout.more}
            return layout, stem, {key: part for end, key in ends.items() if (part := beside(end)) is not None}
    return None


def settings_of(folder: Path) -> Mapping[str, Any]:
    """Return the quantisation settings, field -> value, of the config.json, quantize_config.json or
    hf_quant_config.json in a folder; {} if there are none.
    """
    return next(iter(settings_by_file(folder).values()), {})


def settings_by_file(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the quantisation settings of each configuration in a folder: name of the file -> {field: value}.

    The files are config.json, quantize_config.json and hf_quant_config.json, as far as they have such settings.
    """
    settings: dict[str, Mapping[str, Any]] = {}
    for name in CONFIGURATIONS:
        try:
            path = folder / name
            if path.stat().st_size > CONFIGURATION_BYTES:
                continue
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        inner = content.get("quantization_config", content) if isinstance(content, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("quantization"), dict):  # ModelOpt's separate file
            inner = {"quant_method": "modelopt", **inner["quantization"]}
        if isinstance(inner, dict) and ("quant_method" in inner or "bits" in inner):
            settings[name] = inner
    return settings
