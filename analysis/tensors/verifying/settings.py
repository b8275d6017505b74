"""Checks of weights against the checkpoint's configuration, and against the layouts that libraries read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.float_blocks import configured_block
from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.verifying.configuration import only_scheme
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.analysis.tensors.verifying.states import bitsandbytes_findings, hqq_findings, torchao_findings
from fpsim.analysis.tensors.verifying.values import floats
from fpsim.display.wording import are
from fpsim.errors import shown

# quant_method -> the beginnings of the names of the layouts that it stands for.
METHODS = {
    "fp8": ("deepseek_", "compressed-tensors:fp8", "modelopt:fp8"), "compressed-tensors": ("compressed-tensors:",),
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
# compressed-tensors' format -> the beginnings of the ends of the layouts' names; other formats mix several.
FORMATS = {
    "float-quantized": ("fp8",), "int-quantized": ("int8",), "pack-quantized": ("int",),
    "nvfp4-pack-quantized": ("nvfp4",), "mxfp4-pack-quantized": ("mxfp4",), "mxfp8-quantized": ("mxfp8",),
}  # fmt: skip
WIDTHS = {"E4M3": 8, "E5M2": 8, "MXFP8": 8, "MXFP4": 4, "NVFP4": 4}  # bits of a code
GGUF = "gguf:"


def method_findings(by_file: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield a note for each method of quantisation that a configuration names and that fpsim does not know.

    by_file: name of a configuration's file -> its settings, field -> value.
    """
    for file, settings in by_file.items():
        method = settings.get("quant_method")
        if isinstance(method, str) and method not in METHODS:
            unknown = f"{file} says quant_method {shown(method)}, which fpsim does not know"
            yield Finding("", "unknown quant_method", f"{unknown}: its settings were not checked.", False)


def shape_findings(one: Recognised) -> Iterator[Finding]:
    """Yield findings for scales whose shape fits the codes, but is not one that libraries write.

    Also yield a finding if NVFP4's scale of the whole tensor is missing, or if UINT8 codes have no zero points.
    """
    parts, name, words = one.parts, one.parts.name, one.decoded.dtype
    scale = parts.beside["scale"]
    label = scale.name.rpartition(".")[2]
    if words.startswith("E2M1 in 1x"):
        block = int(words.removeprefix("E2M1 in 1x").partition(" ")[0])
        wanted = BLOCKS.get(scale.dtype, 16)
        yield Finding.about(
            name, "block size", f"its {label} has one {scale.dtype} scale per {block} codes; expected one per {wanted}."
        )
    if words == "NVFP4" and not {"tensor_scale", "tensor_divisor"} & parts.beside.keys():
        missing = {".weight": "weight_scale_2", ".weight_packed": "weight_global_scale"}.get(one.layout.codes)
        if missing:
            yield Finding.about(name, "tensor scale missing", "the layout has one more scale for the whole tensor, and "
                                f"{missing} is missing.")  # fmt: skip
    integers = not one.decoded.layout.startswith("deepseek_fp8")
    if integers and words.startswith("UINT8") and "zero_point" not in parts.beside:
        yield Finding.about(name, "dtype of codes", "its codes are stored as uint8 without zero points, so that no "
                            "weight is negative; libraries store int8.")  # fmt: skip
    if one.decoded.layout == "mxfp4" and parts.codes.shape[:-1] != scale.shape:
        yield Finding.about(name, "shape of blocks", f"its blocks have the shape {parts.codes.shape}, and its scales "
                            f"{scale.shape}; gpt-oss's readers need blocks of one more axis, 16 bytes for each "
                            "scale.")  # fmt: skip
    if words.endswith("with column scales"):
        yield Finding.about(name, "scales transposed", f"its {label} of shape {scale.shape} has one scale per column; "
                            "libraries multiply rows, so it looks transposed.")  # fmt: skip
    if words.startswith("E4M3 in ") and scale.dtype == "uint8" and "MX" not in words:
        yield Finding.about(name, "block size", f"its {label} of powers of two has the shape {scale.shape}; MXFP8 has "
                            "one per 32 codes of a row.")  # fmt: skip


def settings_findings(one: Recognised, metadata: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each contradiction between a weight and the checkpoint's configuration or metadata.

    Method and layout must agree, and modules that the configuration ignores must not be quantised; further checks
    depend on the layout. one: the weight, with its stored tensors, layout and configuration. metadata: name -> text,
    as the header of its file stores them.
    """
    layout, settings, name = one.decoded.layout, one.parts.settings, one.parts.name
    method = str(settings.get("quant_method", ""))
    if method in METHODS and not layout.startswith(METHODS[method]):
        yield Finding.about(name, "quant_method", f"the configuration says quant_method {method!r}, and its tensors "
                            f"are those of {layout}.")  # fmt: skip
        return
    module = name.removesuffix(".weight")
    for ignored in (*_words(settings.get("ignore")), *_words(settings.get("exclude_modules"))):
        if _matches(ignored, module):
            yield Finding.about(name, "ignored and quantised", f"the configuration says that {ignored} is not "
                                "quantised, and this weight is.")  # fmt: skip
    if layout in ("gptq", "gptq_v2", "awq"):
        yield from _packed(one)
    if layout == "awq":
        yield from _awq(one)
    if layout.startswith("deepseek_fp8"):
        yield from _deepseek(one)
    if method == "compressed-tensors":
        yield from _compressed(one)
    if method == "modelopt":
        yield from _modelopt(one)
    if layout.startswith("bitsandbytes:"):
        yield from bitsandbytes_findings(one)
    if layout.startswith("torchao:"):
        yield from torchao_findings(one, metadata)
    if layout.startswith("hqq:"):
        yield from hqq_findings(one)


def _packed(one: Recognised) -> Iterator[Finding]:
    """Yield a finding for each contradiction between a GPTQ or AWQ weight and its configuration.

    Compared are bits, group_size (with the number of groups), and for GPTQ desc_act with the tensor g_idx.
    """
    parts, name = one.parts, one.parts.name
    k, n = one.decoded.shape
    groups = parts.beside["scale"].shape[0]
    bits = parts.beside["zero_point"].shape[1] * 32 // n
    if type(parts.settings.get("bits")) is int and parts.settings["bits"] != bits:
        yield Finding.about(
            name, "bits", f"the configuration says {parts.settings['bits']} bits, and its tensors have {bits}."
        )
    size = parts.settings.get("group_size")
    if type(size) is int:
        wrong = list(_group_count(one, size, k, groups))
        yield from wrong
        if not wrong and "group" in parts.beside and one.decoded.layout != "awq":  # AWQ's readers have no g_idx
            size = min(size, k) if size > 0 else k
            yield from _groups(one, size)
            plain = np.arange(k) // size
            equal = np.array_equal(parts.array("group").reshape(-1), plain)
            if not equal and parts.settings.get("desc_act") is False:
                yield Finding.about(
                    name, "g_idx", f"the configuration says desc_act false, and its g_idx is not input // {size}."
                )
            if equal and parts.settings.get("desc_act") is True and groups > 1:
                yield Finding.about(name, "g_idx in order", "the configuration says desc_act, and its g_idx is input "
                                    f"// {size}, as without desc_act; the file does not show whether an order was "
                                    "lost.", False)  # fmt: skip
    if parts.settings.get("desc_act") is True and "group" not in parts.beside and groups > 1:
        yield Finding.about(name, "g_idx missing", "the configuration says desc_act, and its g_idx is missing.")


def _group_count(one: Recognised, size: int, k: int, groups: int) -> Iterator[Finding]:
    """Yield a finding if the configured size of groups gives another number of groups than the scales have.

    size: configured inputs of a group; all inputs if it is below 1. k: number of inputs of the weight. groups: number
    of groups for which there are scales.
    """
    wanted = 1 if size <= 0 else -(-k // size)
    if wanted != groups:
        yield Finding.about(one.parts.name, "group size", f"the configuration says groups of {size}, which makes "
                            f"{wanted} groups of {k} inputs, and there are scales for {groups}.")  # fmt: skip


def _blocks(one: Recognised) -> Iterator[Finding]:
    """Yield a finding if a weight's scales do not have the shape that follows from the configured blocks, if any."""
    block, shape, scales = configured_block(one.parts.settings), one.decoded.shape, one.parts.beside["scale"].shape
    if block is None:
        return
    wanted = tuple(-(-n // side) for n, side in zip(shape[-2:], block, strict=True))
    if scales[-2:] != wanted:
        more = ", the transpose" if scales[-2:] == wanted[::-1] else ""
        yield Finding.about(one.parts.name, "block size", f"the configuration says blocks of {block[0]} x {block[1]}, "
                            f"for which the scales of a weight of shape {shape} have the shape {wanted}; these have "
                            f"{scales}{more}.")  # fmt: skip


def _groups(one: Recognised, size: int) -> Iterator[Finding]:
    """Yield a finding if g_idx, which lists the group of each input, assigns a group no input or more than `size`."""
    parts, name = one.parts, one.parts.name
    groups = parts.beside["scale"].shape[0]
    counts = np.bincount(parts.array("group").reshape(-1), minlength=groups)
    if counts.max() > size or not counts.all():
        index = int(np.argmax(counts > size)) if counts.max() > size else int(np.argmin(counts))
        yield Finding.about(name, "g_idx groups", f"its g_idx assigns {counts[index]} inputs to group {index}; groups "
                            f"have {size}, and each of the {groups} has some.")  # fmt: skip


def _awq(one: Recognised) -> Iterator[Finding]:
    """Yield a finding for each contradiction between an AWQ weight and the fields of AWQ's configuration.

    `version` must be "gemm", "exllama" or "ipex", and with `zero_point` false all zero points must be equal.
    """
    parts, name = one.parts, one.parts.name
    version = parts.settings.get("version")
    if isinstance(version, str) and version.lower() not in ("gemm", "exllama", "ipex"):
        yield Finding.about(
            name, "version", f"the configuration says version {version!r}, and its tensors are packed for gemm."
        )
    if parts.settings.get("zero_point") is False:
        words = parts.array("zero_point").view(np.uint32)
        if words.size and (words != np.uint32(0x11111111) * (words.flat[0] & np.uint32(15))).any():
            yield Finding.about(name, "not symmetric", "the configuration says zero_point false, and its zero points "
                                "are not all the same.")  # fmt: skip


def _deepseek(one: Recognised) -> Iterator[Finding]:
    """Yield a finding for each contradiction between a weight in DeepSeek's FP8 and its configuration.

    The codes' dtype and the setting `fmt` must be E4M3, `scale_fmt` must be the format of the scales, and the shape of
    the scales must follow from weight_block_size.
    """
    parts, name = one.parts, one.parts.name
    scale = parts.beside["scale"]
    if not parts.codes.dtype.startswith("float8_e4m3"):
        yield Finding.about(name, "dtype of codes", f"its codes are stored as {parts.codes.dtype}; the layout's "
                            "readers take float8_e4m3fn.")  # fmt: skip
    said = parts.settings.get("fmt")
    if isinstance(said, str) and said != "e4m3":
        yield Finding.about(name, "fmt", f"the configuration says fmt {said!r}; the layout's codes are e4m3.")
    if parts.settings.get("scale_fmt") == "float" and scale.dtype == "float8_e8m0fnu":
        yield Finding.about(
            name, "scale_fmt", f"the configuration says scale_fmt float, and its scales are {scale.dtype}."
        )
    if scale.size > 1:
        yield from _blocks(one)
    if parts.settings.get("scale_fmt") == "ue8m0" and scale.dtype == "float32":
        values = floats(scale)
        odd = int(np.sum((values.view(np.uint32) & np.uint32(0x7FFFFF)) != 0))
        if odd:
            yield Finding.about(name, "ue8m0 as floats", f"the configuration says scale_fmt ue8m0, and {odd} of its "
                                f"{values.size} float32 scales {are(odd)} not powers of two: readers that use only the "
                                "exponents change them. fpsim reads the values.", False)  # fmt: skip


def _compressed(one: Recognised) -> Iterator[Finding]:
    """Yield a finding for each contradiction between a compressed-tensors weight and its configuration.

    Compared is `format`, and if there is one scheme for all weights, its strategy, group or block size, num_bits, type,
    and `symmetric` with the presence of zero points.
    """
    parts, name, words = one.parts, one.parts.name, one.decoded.dtype
    scales, said = parts.beside["scale"].shape, parts.settings.get("format")
    layouts = FORMATS.get(said) if isinstance(said, str) else None
    if layouts is not None and not one.decoded.layout.removeprefix("compressed-tensors:").startswith(layouts):
        yield Finding.about(
            name, "format", f"the configuration says format {said}, and its tensors are those of {one.decoded.layout}."
        )
    weights = only_scheme(parts.settings).get("weights")
    if not isinstance(weights, Mapping):
        return  # with several schemes, patterns of classes say which of them a weight has
    strategy, size = weights.get("strategy"), weights.get("group_size")
    strategy = strategy if isinstance(strategy, str) else ""
    fits = any(part in words for part in STRATEGIES.get(strategy, ()))
    fits = fits or (strategy == "channel" and _is_row(one) and "with one scale" in words)
    if strategy in STRATEGIES and not fits:
        yield Finding.about(name, "strategy", f"the configuration says one scale per {strategy}, and with scales of "
                            f"shape {scales} the weight is {words}.")  # fmt: skip
    if strategy == "channel" and len(scales) == 1 and "with row scales" in words:
        yield Finding.about(name, "shape of scales", f"its scales have the shape {scales}; compressed-tensors "
                            f"multiplies by scales of {(*scales, 1)}.")  # fmt: skip
    if strategy in ("group", "tensor_group") and type(size) is int and size > 0:
        yield from _group_count(one, size, one.decoded.shape[-1], scales[-1] if scales else 1)
    if strategy == "block":
        yield from _blocks(one)
    bits = weights.get("num_bits")
    kind = words.partition(" ")[0]
    stored = int(kind.removeprefix("INT")) if kind.startswith("INT") else WIDTHS.get(kind)
    if stored is not None and type(bits) is int and bits != stored:
        yield Finding.about(name, "bits", f"the configuration says {bits} bits, and the weight is {words}.")
    if stored is not None and weights.get("type") == ("float" if kind.startswith("INT") else "int"):
        yield Finding.about(name, "type", f"the configuration says type {weights['type']}, and the weight is {words}.")
    symmetric, integers = weights.get("symmetric"), weights.get("type") == "int"
    if integers and symmetric is False and "zero_point" not in parts.beside:
        yield Finding.about(name, "zero points missing", "the configuration says that the codes are not symmetric, and "
                            "weight_zero_point is missing.")  # fmt: skip
    if integers and symmetric is True and "zero_point" in parts.beside:
        yield Finding.about(name, "zero points of symmetric codes", "the configuration says that the codes are "
                            "symmetric, and the weight has zero points.")  # fmt: skip


def _is_row(one: Recognised) -> bool:
    """Return whether a weight has a single output, so that one scale per output is one scale for the weight."""
    return len(one.decoded.shape) == 2 and one.decoded.shape[0] == 1


def _modelopt(one: Recognised) -> Iterator[Finding]:
    """Yield a finding for each contradiction between a ModelOpt weight and its configuration.

    Compared are quant_algo with the layout, and group_size with the number of codes per scale.
    """
    settings, name = one.parts.settings, one.parts.name
    algorithm, size = str(settings.get("quant_algo", "")), settings.get("group_size")
    wanted, layout = ALGORITHMS.get(algorithm), one.decoded.layout
    fits = layout == wanted or (wanted == "modelopt:fp8_channel" and layout == "modelopt:fp8" and _is_row(one))
    if wanted and not fits:
        yield Finding.about(name, "quant_algo", f"the configuration says quant_algo {algorithm}, and its "
                            f"tensors are those of {layout}.")  # fmt: skip
    if type(size) is int and layout in ("modelopt:nvfp4", "modelopt:mxfp8"):
        block = one.decoded.shape[-1] // max(one.parts.beside["scale"].shape[-1], 1)
        if block != size:
            yield Finding.about(name, "group size", f"the configuration says groups of {size}, and its "
                                f"scales have groups of {block}.")  # fmt: skip


def _matches(pattern: str, module: str) -> bool:
    """Return whether a pattern matches a module's name.

    The pattern is a shell pattern, or "re:" and a regular expression, which matches nothing if it is invalid.
    """
    if not pattern.startswith("re:"):
        return fnmatchcase(module, pattern)
    try:
        return re.match(pattern.removeprefix("re:"), module) is not None
    except re.error:
        return False


def _words(value: Any) -> list[str]:
    """Return the strings in a list; [] if the value is not a list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
