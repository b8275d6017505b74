"""Checks of weights against the settings that bitsandbytes, HQQ and torchao store with each weight."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import numpy as np

from fpsim.analysis.tensors.layouts.bitsandbytes import FP4, NF4, dynamic_table, is_nf4
from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.layouts.unpacking import swizzled_shape
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.analysis.tensors.verifying.values import floats
from fpsim.errors import shown

DYNAMIC_APART = 1e-6  # largest difference from the table of 8-bit scales: without fused multiply-add last bits differ


def bitsandbytes_findings(one: Recognised) -> Iterator[Finding]:
    """Yield a finding for each contradiction between a bitsandbytes weight, its stored tables and the configuration.

    The stored table of 16 values must be that of NF4 or FP4, whichever the weight's state names. The stored table of
    quantised scales, if any, must be bitsandbytes' 8-bit one. The configuration's bits, type and double quantisation
    must be those of the stored tensors.
    """
    settings, name, layout = one.parts.settings, one.parts.name, one.decoded.layout
    if "table" in one.parts.beside:
        said, values = ("NF4", NF4) if is_nf4(one.parts) else ("FP4", FP4)
        if not np.array_equal(floats(one.parts.beside["table"]), np.array(values, np.float32)):
            yield Finding.about(name, "quant_map", f"its state says {said}, and its quant_map is not {said}'s.")
    if "nested_scale" in one.parts.beside:
        table = floats(one.parts.beside["nested_table"])
        apart = np.abs(table - dynamic_table()) > DYNAMIC_APART
        if apart[1:].any():  # earlier versions stored -1 as the first entry
            place = int(np.argmax(apart[1:])) + 1
            yield Finding.about(name, "nested_quant_map", "its nested_quant_map is not bitsandbytes' 8-bit table, "
                                f"first at index {place}, where it is {table[place]:.6g}.")  # fmt: skip
    double = settings.get("bnb_4bit_use_double_quant")
    if settings.get("load_in_4bit") is True and isinstance(double, bool) and double != layout.endswith("_double"):
        holds = "quantised" if layout.endswith("_double") else "plain"
        yield Finding.about(name, "double quantisation", "the configuration says bnb_4bit_use_double_quant "
                            f"{str(double).lower()}, and its scales are {holds}.")  # fmt: skip
    kind = settings.get("bnb_4bit_quant_type")
    if settings.get("load_in_4bit") is True and kind in ("nf4", "fp4") and f":{kind}" not in layout:
        yield Finding.about(
            name, "quant_type", f"the configuration says {kind}, and its tensors are those of {layout}."
        )
    if settings.get("load_in_8bit") is True and layout != "bitsandbytes:int8":
        yield Finding.about(
            name, "quant_type", f"the configuration says 8 bits, and its tensors are those of {layout}."
        )


def hqq_findings(one: Recognised) -> Iterator[Finding]:
    """Yield a finding for each contradiction between an HQQ weight, its stored settings and the configuration.

    Compared are nbits, group_size and axis, which follow from the shapes of the tensors.
    """
    parts, name = one.parts, one.parts.name
    bits = int(one.decoded.layout.removeprefix("hqq:int"))
    scales, size = parts.beside["scale"].shape, math.prod(one.decoded.shape)
    axis = 1 if scales[-1] == 1 else 0
    held = {"nbits": bits, "group_size": size // max(math.prod(scales), 1), "axis": axis}
    configured = parts.settings.get("quant_config")
    configured = configured.get("weight_quant_params") if isinstance(configured, Mapping) else None
    for key, value in held.items():
        stored = parts.beside.get(key)
        if stored is not None and stored.size != 1:
            text = f"its stored {key} has the shape {stored.shape}; readers need one value."
            yield Finding.about(name, f"stored {key}", text)
        elif stored is not None and parts.number(key) != value:
            text = f"its stored {key} is {parts.number(key):g}, and its tensors are those of {value}."
            yield Finding.about(name, f"stored {key}", text)
        wanted = configured.get(key) if isinstance(configured, Mapping) else None
        if type(wanted) is int and wanted != value:
            yield Finding.about(
                name, key, f"the configuration says {key} {wanted}, and its tensors are those of {value}."
            )


def torchao_findings(one: Recognised, metadata: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each contradiction between a weight and the metadata that torchao writes into the file.

    The metadata must be JSON that names the class of the weight; its block size and order of scales must fit the shape
    of the scales, and the tensors that it lists must be in the file. metadata: name of a weight -> text.
    """
    parts, name = one.parts, one.parts.name
    try:
        saved = json.loads(metadata.get(name, "{}"))
        saved = saved if isinstance(saved, dict) else {}
        data, tensors = saved.get("_data"), saved.get("_tensor_data_names")
    except (ValueError, RecursionError):
        yield Finding.about(name, "metadata", "the metadata of its file are not JSON.")
        return
    if not isinstance(data, dict) or not isinstance(tensors, list):
        yield Finding.about(
            name, "metadata", "the metadata of its file do not name its class, so torchao cannot load it."
        )
        return
    shape = parts.beside["scale"].shape
    block = data.get("block_size")
    width = block[-1] if isinstance(block, list) and block else block
    k, n = one.decoded.shape[-1], math.prod(one.decoded.shape[:-1])
    if isinstance(width, int) and width > 0 and isinstance(data.get("is_swizzled_scales"), bool):
        plain = (n, k // width)
        tiled = swizzled_shape(*plain)
        wanted = tiled if data["is_swizzled_scales"] else plain
        if shape not in (wanted, (math.prod(wanted),)):
            said = "true" if data["is_swizzled_scales"] else "false"
            other = "plain" if data["is_swizzled_scales"] else "in tiles of 128 x 4"
            yield Finding.about(name, "swizzled", f"is_swizzled_scales is {said}, for which the scales have the shape "
                                f"{wanted}; these have "
                                f"{shape}{f', {other}' if shape in (plain, tiled) else ''}.")  # fmt: skip
    elif isinstance(width, int) and width > 0 and shape[-1:] != (k // width,) and parts.beside["scale"].size > 1:
        yield Finding.about(
            name, "block size", f"its block_size is {shown(block)}, and its scales have the shape {shape}."
        )
    missing = [str(part) for part in tensors if part != "qdata" and not any(
        stored.name.endswith(f"_weight_{part}") for stored in parts.beside.values())]  # fmt: skip
    if missing:
        yield Finding.about(
            name, "tensor missing", f"the metadata name {', '.join(missing)}, which the file does not hold."
        )
