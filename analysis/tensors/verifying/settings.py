"""Checks of weights against the checkpoint's configuration and the layouts that libraries read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.bitsandbytes import FP4, NF4, dynamic_table, is_nf4
from fpsim.analysis.tensors.layouts.float_blocks import configured_block
from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.analysis.tensors.verifying.values import floats
from fpsim.errors import shown

# quant_method -> the beginnings of the names of the layouts that it stands for.
METHODS = {
    "fp8": ("deepseek_fp8", "compressed-tensors:fp8", "modelopt:fp8"), "compressed-tensors": ("compressed-tensors:",),
    "modelopt": ("modelopt:",), "gptq": ("gptq",), "gptq_v2": ("gptq",), "awq": ("awq",), "mxfp4": ("mxfp4",),
    "torchao": ("torchao:",), "bitsandbytes": ("bitsandbytes:",), "hqq": ("hqq:",),
}  # fmt: skip
# compressed-tensors' strategy of weights -> the words for such scales in the names of weights' dtypes.
STRATEGIES = {"tensor": ("with one scale",), "channel": ("with row scales",), "block": ("blocks", "with one scale")}
ALGORITHMS = {
    "FP8": "modelopt:fp8", "NVFP4": "modelopt:nvfp4", "MXFP8": "modelopt:mxfp8", "MXFP4": "modelopt:mxfp4",
    "FP8_PER_CHANNEL_PER_TOKEN": "modelopt:fp8_channel", "FP8_PB_WO": "modelopt:fp8_block",
}  # fmt: skip
BLOCKS = {"float8_e4m3fn": 16, "uint8": 32, "float8_e8m0fnu": 32}  # dtype of scales of E2M1 -> codes of a block
GGUF = "gguf:"
DYNAMIC_APART = 1e-6  # processors without fused multiply-add compute the table of 8-bit scales with other last bits


def shape_findings(one: Recognised) -> Iterator[Finding]:
    """Yield scales that fit the codes in shape, but that no library writes in that shape."""
    assert one.weight is not None
    parts, name, words = one.parts, one.parts.name, one.weight.dtype
    scale = parts.beside["scale"]
    label = scale.name.rpartition(".")[2]
    if words.startswith("E2M1 in 1x"):
        block = int(words.removeprefix("E2M1 in 1x").partition(" ")[0])
        wanted = BLOCKS.get(scale.dtype, 16)
        yield Finding(
            name,
            "block size",
            f"{name}: its {label} has one {scale.dtype} scale per {block} codes; expected one per {wanted}.",
        )
    if words == "NVFP4" and not {"tensor_scale", "tensor_divisor"} & parts.beside.keys():
        missing = {".weight": "weight_scale_2", ".weight_packed": "weight_global_scale"}.get(one.layout.codes)
        if missing:
            text = f"{name}: the layout has one more scale for the whole tensor, and {missing} is missing."
            yield Finding(name, "tensor scale missing", text)
    if words.endswith("with column scales"):
        yield Finding(
            name,
            "scales transposed",
            f"{name}: its {label} of shape {scale.shape} has one scale per column; libraries multiply rows, so it "
            "looks transposed.",
        )
    if words.startswith("E4M3 in ") and scale.dtype == "uint8" and "MX" not in words:
        yield Finding(
            name,
            "block size",
            f"{name}: its {label} of powers of two has the shape {scale.shape}; MXFP8 has one per 32 codes of a row.",
        )


def settings_findings(one: Recognised, metadata: Mapping[str, str]) -> Iterator[Finding]:
    """Yield contradictions between a weight and the checkpoint's configuration or the file's metadata."""
    assert one.weight is not None
    layout, settings, name = one.weight.layout, one.parts.settings, one.parts.name
    method = str(settings.get("quant_method", ""))
    if method in METHODS and not layout.startswith(METHODS[method]):
        yield Finding(
            name,
            "quant_method",
            f"{name}: the configuration says quant_method {method!r}, and its tensors are those of {layout}.",
        )
        return
    module = name.removesuffix(".weight")
    for ignored in (*_words(settings.get("ignore")), *_words(settings.get("exclude_modules"))):
        if _names(ignored, module):
            yield Finding(
                name,
                "ignored and quantised",
                f"{name}: the configuration says that {ignored} is not quantised, and this weight is.",
            )
    if layout in ("gptq", "gptq_v2", "awq"):
        yield from _packed(one)
    if method == "fp8":
        yield from _deepseek(one)
    if method == "compressed-tensors":
        yield from _compressed(one)
    if method == "modelopt":
        yield from _modelopt(one)
    if layout.startswith("bitsandbytes:"):
        yield from _bitsandbytes(one)
    if layout.startswith("torchao:"):
        yield from _torchao(one, metadata)
    if layout.startswith("hqq:"):
        yield from _hqq(one)


def _packed(one: Recognised) -> Iterator[Finding]:
    """Yield contradictions between a weight of GPTQ or AWQ and its configuration."""
    assert one.weight is not None
    parts, name = one.parts, one.parts.name
    k, n = one.weight.shape
    groups = parts.beside["scale"].shape[0]
    bits = parts.beside["zero_point"].shape[1] * 32 // n
    if type(parts.settings.get("bits")) is int and parts.settings["bits"] != bits:
        yield Finding(
            name, "bits", f"{name}: the configuration says {parts.settings['bits']} bits, and its tensors have {bits}."
        )
    size = parts.settings.get("group_size")
    if type(size) is int:
        wanted = 1 if size <= 0 else -(-k // size)
        if wanted != groups:
            yield Finding(
                name,
                "group size",
                f"{name}: the configuration says groups of {size}, which makes {wanted} groups of {k} inputs, and "
                f"there are scales for {groups}.",
            )
        elif "group" in parts.beside:
            plain = np.arange(k) // (size if size > 0 else k)
            equal = np.array_equal(parts.array("group").reshape(-1), plain)
            if not equal and parts.settings.get("desc_act") is False:
                yield Finding(
                    name,
                    "g_idx",
                    f"{name}: the configuration says desc_act false, and its g_idx is not input // {size}.",
                )
            if equal and parts.settings.get("desc_act") is True and groups > 1:
                yield Finding(
                    name,
                    "g_idx in order",
                    f"{name}: the configuration says desc_act, and its g_idx is input // {size}, as without desc_act; "
                    "the file does not show whether an order was lost.",
                    False,
                )
    if parts.settings.get("desc_act") is True and "group" not in parts.beside and groups > 1:
        yield Finding(name, "g_idx missing", f"{name}: the configuration says desc_act, and its g_idx is missing.")


def _deepseek(one: Recognised) -> Iterator[Finding]:
    """Yield contradictions between a weight of DeepSeek's FP8 and its configuration."""
    parts, name = one.parts, one.parts.name
    shape, scale = parts.codes.shape, parts.beside["scale"]
    block = configured_block(parts.settings)
    if block is not None and scale.size > 1:
        wanted = tuple(-(-n // side) for n, side in zip(shape[-2:], block, strict=True))
        if scale.shape[-2:] != wanted:
            turned = scale.shape[-2:] == wanted[::-1]
            more = ", the transpose" if turned else ""
            yield Finding(
                name,
                "block size",
                f"{name}: the configuration says blocks of {block[0]} x {block[1]}, for which the scales of a weight "
                f"of shape {shape} have the shape {wanted}; these have {scale.shape}{more}.",
            )
    if parts.settings.get("scale_fmt") == "ue8m0" and scale.dtype == "float32":
        values = floats(scale)
        odd = int(np.sum((values.view(np.uint32) & np.uint32(0x7FFFFF)) != 0))
        if odd:
            yield Finding(
                name,
                "ue8m0 as floats",
                f"{name}: the configuration says scale_fmt ue8m0, and {odd} of its {values.size} float32 scales are "
                "not powers of two: readers that use only the exponents change them. fpsim reads the values.",
                False,
            )


def _compressed(one: Recognised) -> Iterator[Finding]:
    """Yield contradictions between a weight of compressed-tensors and its configuration."""
    assert one.weight is not None
    parts, name, words = one.parts, one.parts.name, one.weight.dtype
    groups = parts.settings.get("config_groups")
    schemes = [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
    if len(schemes) != 1 or not isinstance(schemes[0].get("weights"), Mapping):
        return  # with several schemes, patterns of classes say which of them a weight has
    weights: Mapping[str, Any] = schemes[0]["weights"]
    strategy, size = weights.get("strategy"), weights.get("group_size")
    if strategy in STRATEGIES and not any(part in words for part in STRATEGIES[strategy]):
        yield Finding(
            name,
            "strategy",
            f"{name}: the configuration says one scale per {strategy}, and with scales of shape "
            f"{parts.beside['scale'].shape} the weight is {words}.",
        )
    if strategy in ("group", "tensor_group") and type(size) is int and size > 0:
        k = one.weight.shape[-1]
        if parts.beside["scale"].shape[-1] != -(-k // size):
            yield Finding(
                name,
                "group size",
                f"{name}: the configuration says groups of {size}, which makes {-(-k // size)} groups of {k} inputs, "
                f"and there are scales for {parts.beside['scale'].shape[-1]}.",
            )
    block = configured_block(parts.settings)
    if strategy == "block" and block is not None:
        wanted = tuple(-(-n // side) for n, side in zip(one.weight.shape[-2:], block, strict=True))
        if parts.beside["scale"].shape[-2:] != wanted:
            yield Finding(
                name,
                "block size",
                f"{name}: the configuration says blocks of {block[0]} x {block[1]}, for which the scales have the "
                f"shape {wanted}; these have {parts.beside['scale'].shape}.",
            )
    bits = weights.get("num_bits")
    if words.startswith("INT") and type(bits) is int and words.partition(" ")[0] != f"INT{bits}":
        yield Finding(name, "bits", f"{name}: the configuration says {bits} bits, and the weight is {words}.")
    symmetric, integers = weights.get("symmetric"), weights.get("type") == "int"
    if integers and symmetric is False and "zero_point" not in parts.beside:
        yield Finding(
            name,
            "zero points missing",
            f"{name}: the configuration says that the codes are not symmetric, and weight_zero_point is missing.",
        )
    if integers and symmetric is True and "zero_point" in parts.beside:
        yield Finding(
            name,
            "zero points of symmetric codes",
            f"{name}: the configuration says that the codes are symmetric, and the weight has zero points.",
        )


def _modelopt(one: Recognised) -> Iterator[Finding]:
    """Yield contradictions between a weight of ModelOpt and its configuration."""
    assert one.weight is not None
    algorithm = str(one.parts.settings.get("quant_algo", ""))
    wanted = ALGORITHMS.get(algorithm)
    if wanted and one.weight.layout != wanted:
        yield Finding(
            one.parts.name,
            "quant_algo",
            f"{one.parts.name}: the configuration says quant_algo {algorithm}, and its tensors are those of "
            f"{one.weight.layout}.",
        )
    size = one.parts.settings.get("group_size")
    if type(size) is int and one.weight.layout in ("modelopt:nvfp4", "modelopt:mxfp8"):
        block = one.weight.shape[-1] // max(one.parts.beside["scale"].shape[-1], 1)
        if block != size:
            yield Finding(
                one.parts.name,
                "group size",
                f"{one.parts.name}: the configuration says groups of {size}, and its scales have groups of {block}.",
            )


def _bitsandbytes(one: Recognised) -> Iterator[Finding]:
    """Yield contradictions between a weight of bitsandbytes and its configuration."""
    assert one.weight is not None
    settings, name, layout = one.parts.settings, one.parts.name, one.weight.layout
    if "table" in one.parts.beside:
        said, values = ("NF4", NF4) if is_nf4(one.parts) else ("FP4", FP4)
        if not np.array_equal(floats(one.parts.beside["table"]), np.array(values, np.float32)):
            yield Finding(name, "quant_map", f"{name}: its state says {said}, and its quant_map is not {said}'s.")
    if "nested_table" in one.parts.beside:
        table = floats(one.parts.beside["nested_table"])
        apart = np.abs(table - dynamic_table()) > DYNAMIC_APART
        if apart[1:].any():  # earlier versions stored -1 as the first entry
            place = int(np.argmax(apart[1:])) + 1
            yield Finding(
                name,
                "nested_quant_map",
                f"{name}: its nested_quant_map is not bitsandbytes' 8-bit table, first at index {place}, where it "
                f"is {table[place]:.6g}.",
            )
    double = settings.get("bnb_4bit_use_double_quant")
    if settings.get("load_in_4bit") is True and isinstance(double, bool) and double != layout.endswith("_double"):
        holds = "quantised" if layout.endswith("_double") else "plain"
        yield Finding(
            name,
            "double quantisation",
            f"{name}: the configuration says bnb_4bit_use_double_quant {str(double).lower()}, and its scales are "
            f"{holds}.",
        )
    kind = settings.get("bnb_4bit_quant_type")
    if settings.get("load_in_4bit") is True and kind in ("nf4", "fp4") and f":{kind}" not in layout:
        yield Finding(
            name, "quant_type", f"{name}: the configuration says {kind}, and its tensors are those of {layout}."
        )
    if settings.get("load_in_8bit") is True and layout != "bitsandbytes:int8":
        yield Finding(
            name, "quant_type", f"{name}: the configuration says 8 bits, and its tensors are those of {layout}."
        )


def _hqq(one: Recognised) -> Iterator[Finding]:
    """Yield contradictions between an HQQ weight, the settings stored beside it, and its configuration."""
    assert one.weight is not None
    parts, name = one.parts, one.parts.name
    bits = int(one.weight.layout.removeprefix("hqq:int"))
    scales, size = parts.beside["scale"].shape, math.prod(one.weight.shape)
    axis = 1 if scales[-1] == 1 else 0
    held = {"nbits": bits, "group_size": size // max(math.prod(scales), 1), "axis": axis}
    configured = parts.settings.get("quant_config")
    configured = configured.get("weight_quant_params") if isinstance(configured, Mapping) else None
    for key, value in held.items():
        said = parts.number(key) if key in parts.beside else value
        if said != value:
            yield Finding(
                name, f"stored {key}", f"{name}: its stored {key} is {said:g}, and its tensors are those of {value}."
            )
        wanted = configured.get(key) if isinstance(configured, Mapping) else None
        if type(wanted) is int and wanted != value:
            yield Finding(
                name, key, f"{name}: the configuration says {key} {wanted}, and its tensors are those of {value}."
            )


def _torchao(one: Recognised, metadata: Mapping[str, str]) -> Iterator[Finding]:
    """Yield contradictions between a weight and the metadata that torchao writes into the file."""
    assert one.weight is not None
    parts, name = one.parts, one.parts.name
    try:
        saved = json.loads(metadata.get(name, "{}"))
        saved = saved if isinstance(saved, dict) else {}
        data, tensors = saved.get("_data"), saved.get("_tensor_data_names")
    except (ValueError, RecursionError):
        yield Finding(name, "metadata", f"{name}: the metadata of its file are not JSON.")
        return
    if not isinstance(data, dict) or not isinstance(tensors, list):
        yield Finding(
            name, "metadata", f"{name}: the metadata of its file do not name its class, so torchao cannot load it."
        )
        return
    shape = parts.beside["scale"].shape
    block = data.get("block_size")
    width = block[-1] if isinstance(block, list) and block else block
    k, n = one.weight.shape[-1], math.prod(one.weight.shape[:-1])
    if isinstance(width, int) and width > 0 and isinstance(data.get("is_swizzled_scales"), bool):
        plain = (n, k // width)
        tiled = (32 * -(-n // 128), 16 * -(-plain[1] // 4))
        wanted = tiled if data["is_swizzled_scales"] else plain
        if shape not in (wanted, (math.prod(wanted),)):
            said = "true" if data["is_swizzled_scales"] else "false"
            other = "plain" if data["is_swizzled_scales"] else "in tiles of 128 x 4"
            yield Finding(
                name,
                "swizzled",
                f"{name}: is_swizzled_scales is {said}, for which the scales have the shape {wanted}; these have "
                f"{shape}{f', {other}' if shape in (plain, tiled) else ''}.",
            )
    elif isinstance(width, int) and width > 0 and shape[-1:] != (k // width,) and parts.beside["scale"].size > 1:
        yield Finding(
            name, "block size", f"{name}: its block_size is {shown(block)}, and its scales have the shape {shape}."
        )
    missing = [part for part in tensors if part != "qdata" and not any(
        stored.name.endswith(f"_weight_{part}") for stored in parts.beside.values())]  # fmt: skip
    if missing:
        text = f"{name}: the metadata name {', '.join(missing)}, which the file does not hold."
        yield Finding(name, "tensor missing", text)


def _names(pattern: str, module: str) -> bool:
    """Return whether a pattern matches a module's name: a regular expression after "re:", else a shell pattern."""
    if not pattern.startswith("re:"):
        return fnmatchcase(module, pattern)
    try:
        return re.match(pattern.removeprefix("re:"), module) is not None
    except re.error:
        return False


def _words(value: Any) -> list[str]:
    """Return the strings in a list; [] if the value is not a list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
