"""The contents of config.json and hf_quant_config.json for a layout, in the fields of the libraries that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fpsim.analysis.tensors.writing.hqq as hqq_layout
import fpsim.analysis.tensors.writing.packed as packed_layout
from fpsim.analysis.tensors.writing.weights import LayoutOptions

Config = dict[str, Any]
MODELOPT = {"name": "modelopt", "version": "0.47.0"}  # the version that writes such files
GPTQMODEL = "gptqmodel:7.7.0"  # the version that writes such files; without it gptqmodel refuses asymmetric GPTQ v1
ALGORITHMS = {"fp8": "FP8", "fp8_channel": "FP8_PER_CHANNEL_PER_TOKEN", "nvfp4": "NVFP4", "mxfp8": "MXFP8"}
GROUPS = {"nvfp4": 16, "mxfp8": 32}
# compressed-tensors: kind -> format, num_bits, type, symmetric, strategy, group_size of weights; strategy of inputs
COMPRESSED: dict[str, tuple[str, int, str, bool, str, int | None, str]] = {
    "fp8_tensor": ("float-quantized", 8, "float", True, "tensor", None, "tensor"),
    "fp8_channel": ("float-quantized", 8, "float", True, "channel", None, "token"),
    "fp8_block": ("float-quantized", 8, "float", True, "block", None, "group"),
    "int8": ("int-quantized", 8, "int", True, "channel", None, "token"),
    "int4": ("pack-quantized", 4, "int", True, "group", packed_layout.GROUP, ""),
    "int4_asym": ("pack-quantized", 4, "int", False, "group", packed_layout.GROUP, ""),
    "nvfp4": ("nvfp4-pack-quantized", 4, "float", True, "tensor_group", 16, "tensor_group"),
    "mxfp4": ("mxfp4-pack-quantized", 4, "float", True, "group", 32, "group"),
    "mxfp8": ("mxfp8-quantized", 8, "float", True, "group", 32, "group"),
}


def _mx(dtype: str) -> Config:
    """Return torchao's configuration of MX weights with its default scales; dtype: torch's name of the codes' dtype."""
    element = {"_type": "torch.dtype", "_data": dtype}
    data = {
        "block_size": 32, "activation_dtype": element, "weight_dtype": element,
        "kernel_preference": {"_type": "KernelPreference", "_data": "EMULATED"},
        "scaling_mode": {"_type": "ScaleCalculationMode", "_data": "FLOOR"},
    }  # fmt: skip
    return {"_type": "MXDynamicActivationMXWeightConfig", "_data": data}


TORCHAO: dict[str, Config] = {
    "mxfp8": _mx("float8_e4m3fn"),
    "mxfp4": _mx("float4_e2m1fn_x2"),
    "nvfp4": {"_type": "NVFP4WeightOnlyConfig", "_data": {"use_dynamic_per_tensor_scale": True}},
}
SCALE_DTYPES = {"nvfp4": "torch.float8_e4m3fn", "mxfp4": "torch.uint8", "mxfp8": "torch.uint8"}


def quantization_config(layout: str, options: LayoutOptions, kept: Sequence[str], measured: bool) -> Config:
    """Return the `quantization_config` of config.json for a layout.

    Args:
      layout: the full name of the layout.
      options: group size, bits and symmetry of the codes.
      kept: names of the modules that stay unquantised.
      measured: whether scales of the layers' inputs are stored, since their largest magnitudes were measured.
    """
    library, _, kind = layout.partition(":")
    unquantised = {"modules_to_not_convert": list(kept)} if kept else {}
    if library == "deepseek_fp8":
        fp8: Config = {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        }  # fmt: skip
        return fp8 | ({"scale_fmt": "ue8m0"} if kind else {}) | unquantised
    if library == "compressed-tensors":
        return _compressed(kind, options, kept, measured)
    if library == "modelopt":
        return _modelopt(kind, kept, measured)
    if library in ("gptq", "gptq_v2"):
        return {
            "bits": options.bits, "group_size": options.group_size or packed_layout.GROUP, "desc_act": False,
            "sym": options.symmetric, "lm_head": False, "quant_method": "gptq", "checkpoint_format": library,
            "pack_dtype": "int32", "meta": {"quantizer": [GPTQMODEL]},
        }  # fmt: skip
    if library == "awq":
        return {
            "quant_method": "awq", "bits": 4, "group_size": options.group_size or packed_layout.GROUP,
            "zero_point": True, "version": "gemm", "modules_to_not_convert": list(kept) or None,
        }  # fmt: skip
    if library == "mxfp4":
        return {"quant_method": "mxfp4", "modules_to_not_convert": list(kept)}
    if library == "bitsandbytes":
        return _bitsandbytes(kind, kept)
    if library == "hqq":
        return _hqq(int(kind.removeprefix("int")), options, kept)
    quant_type = {"default": {**TORCHAO[kind.removesuffix("_swizzled")], "_version": 1}}
    return {"quant_method": "torchao", "quant_type": quant_type, **unquantised}


def modelopt_file(kind: str, kept: Sequence[str]) -> Config:
    """Return the content of ModelOpt's hf_quant_config.json.

    kind: the layout's name after "modelopt:". kept: names of unquantised modules.
    """
    quantization: Config = {"quant_algo": ALGORITHMS[kind], "kv_cache_quant_algo": None}
    if kind in GROUPS:
        quantization["group_size"] = GROUPS[kind]
    return {"producer": MODELOPT, "quantization": {**quantization, "exclude_modules": list(kept)}}


def _bitsandbytes(kind: str, kept: Sequence[str]) -> Config:
    """Return bitsandbytes' `quantization_config`.

    kind: "nf4", "nf4_double" or "int8". kept: names of unquantised modules.
    """
    config: Config = {
        "quant_method": "bitsandbytes", "load_in_4bit": kind != "int8", "load_in_8bit": kind == "int8",
        "llm_int8_skip_modules": list(kept) or None,
    }  # fmt: skip
    if kind == "int8":
        return {**config, "llm_int8_threshold": 6.0, "llm_int8_has_fp16_weight": False}
    return {
        **config, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": kind == "nf4_double",
        "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
    }  # fmt: skip


def _hqq(bits: int, options: LayoutOptions, kept: Sequence[str]) -> Config:
    """Return HQQ's `quantization_config` for codes of `bits` bits; `kept`: names of unquantised modules.

    `options`: the options of the layout, such as the group size.
    """
    weights: Config = {
        "nbits": bits, "channel_wise": True, "group_size": options.group_size or hqq_layout.GROUP, "optimize": False,
        "round_zero": bits == 4, "axis": 1, "view_as_float": False,
    }  # fmt: skip
    quant_config = {
        "weight_quant_params": weights, "scale_quant_params": None, "zero_quant_params": None, "offload_meta": False,
    }  # fmt: skip
    return {"quant_method": "hqq", "quant_config": quant_config, "skip_modules": list(kept)}


def _modelopt(kind: str, kept: Sequence[str], measured: bool) -> Config:
    """Return ModelOpt's `quantization_config`; kind: the layout's name after "modelopt:".

    kept: names of the modules that stay unquantised. measured: whether scales of the layers' inputs are stored.
    """
    config: Config = {"ignore": list(kept), "quant_algo": ALGORITHMS[kind], "producer": MODELOPT}
    if kind in ("fp8", "nvfp4"):
        scheme: Config = {"dynamic": False, "num_bits": 8 if kind == "fp8" else 4, "type": "float"}
        scheme |= {"group_size": GROUPS[kind]} if kind in GROUPS else {}
        inputs = {"input_activations": dict(scheme)} if measured else {}
        config["config_groups"] = {"group_0": {**inputs, "weights": scheme, "targets": ["Linear"]}}
    return {**config, "quant_method": "modelopt"}


def _compressed(kind: str, options: LayoutOptions, kept: Sequence[str], measured: bool) -> Config:
    """Return compressed-tensors' `quantization_config`, for all linear layers except the modules in `kept`.

    `kind`: the layout's name after "compressed-tensors:". `options`: the options of the layout, such as the group size.
    `measured`: whether scales of inputs are stored.
    """
    name, bits, number, symmetric, strategy, group, of_inputs = COMPRESSED[kind]
    weights: Config = {
        "num_bits": bits, "type": number, "symmetric": symmetric, "strategy": strategy, "dynamic": False,
        "group_size": options.group_size or group if kind.startswith("int4") else group,
    }  # fmt: skip
    inputs: Config | None = {**weights, "symmetric": True, "strategy": of_inputs, "dynamic": True}
    if kind == "fp8_block":
        weights["block_structure"] = [128, 128]
        inputs = {**weights, "strategy": "group", "group_size": 128, "dynamic": True}
        del inputs["block_structure"]
    if kind in SCALE_DTYPES:
        weights["scale_dtype"] = SCALE_DTYPES[kind]
        inputs = {**weights, "dynamic": True}
    if kind == "fp8_tensor" and measured:
        inputs = {**weights, "dynamic": False}
    if kind == "nvfp4":  # without a scale of the inputs, weights alone are quantised
        inputs = {**weights, "dynamic": "local"} if measured else None
    group_0 = {
        "targets": ["Linear"], "weights": weights, "input_activations": inputs if of_inputs else None,
        "output_activations": None, "format": name,
    }  # fmt: skip
    return {
        "config_groups": {"group_0": group_0}, "quant_method": "compressed-tensors", "kv_cache_scheme": None,
        "format": name, "quantization_status": "compressed", "global_compression_ratio": None, "ignore": list(kept),
    }  # fmt: skip
