"""`fp.analysis.verify`: files of the libraries pass, and a corrupted copy of each layout is diagnosed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.layouts.unpacking import AWQ_ORDER
from tests.analysis.tensors.test_layouts import ROWS, WEIGHT
from tests.analysis.tensors.verify_cases import copied, mapped

Arrays = dict[str, np.ndarray[Any, Any]]


FAULTY = {"torchao_fp8_row": "torchao's Float8WeightOnlyConfig writes a scale of 0"}  # as the library wrote them


@pytest.mark.parametrize("layout", ROWS)
def test_files_of_the_libraries_pass(layout: str, tmp_path: Path) -> None:
    report = fp.analysis.verify(copied(layout, tmp_path))
    if layout in FAULTY:
        assert len(report.problems) == 1
        assert FAULTY[layout] in report.problems[0]
    else:
        assert report.ok, report.problems
    assert report.weights == (14 if layout == "gguf" else 1)
    assert any("the file alone does not show" in note for note in report.notes)


class Corruption(NamedTuple):
    """A change of a library's file or configuration, and a part of the problem that it must give."""

    layout: str
    change: Callable[[Arrays], None] | None
    said: str
    settings: dict[str, Any] = {}  # noqa: RUF012


def put(name: str, where: Any, value: Any) -> Callable[[Arrays], None]:
    """Return a change of elements of a tensor."""

    def change(arrays: Arrays) -> None:
        arrays[name][where] = value

    return change


def without(name: str) -> Callable[[Arrays], None]:
    """Return a change that removes a tensor."""

    def change(arrays: Arrays) -> None:
        del arrays[name]

    return change


def with_fields(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    """Return a change of all 4-bit fields of a tensor of words: (..., words, 8) fields."""

    def words(array: Any) -> Any:
        fields = array.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & np.uint32(15)
        new = np.asarray(change(fields), np.uint32) & np.uint32(15)
        return np.bitwise_or.reduce(new << np.arange(0, 32, 4, dtype=np.uint32), axis=-1).view(np.int32)

    return mapped(name, words)


def plain_order(fields: Any) -> Any:
    """Return AWQ's fields in the plain order of their columns."""
    return fields[..., list(AWQ_ORDER)]


def twice_as_long(scales: Any) -> Any:
    return np.repeat(scales, 2, axis=-1)


def half(scales: Any) -> Any:
    return scales[..., ::2]


NAN8 = np.uint8(0x7F).view(ml_dtypes.float8_e4m3fn)


CORRUPTIONS: dict[str, Corruption] = {
    "deepseek: NaN scale": Corruption(
        "fp8_block_deepseek_v3", put("weight_scale_inv", (0, 1), np.nan), "scales in weight_scale_inv is NaN"
    ),
    "deepseek: negative scale": Corruption(
        "fp8_block_deepseek_v3", put("weight_scale_inv", (1, 1), -0.01), "is negative, the first at index 3"
    ),
    "deepseek: NaN code": Corruption("fp8_block_deepseek_v3", put("weight", (7, 9), NAN8), "first in row 7"),
    "deepseek: inverted scales": Corruption(
        "fp8_block_deepseek_v3", mapped("weight_scale_inv", lambda s: np.float32(1) / s), "the scales look inverted"
    ),
    "deepseek: no scales": Corruption(
        "fp8_block_deepseek_v3", without("weight_scale_inv"), "weight_scale_inv is missing"
    ),
    "deepseek: another block size": Corruption(
        "fp8_block_deepseek_v3", mapped("weight_scale_inv", twice_as_long), "have the shape (2, 2); these have (2, 4)"
    ),
    "deepseek: configuration of another block": Corruption(
        "fp8_block_deepseek_v3", None, "says blocks of 64 x 128", {"weight_block_size": [64, 128]}
    ),
    "ue8m0: NaN": Corruption("fp8_block_ue8m0", lambda a: a["weight_scale_inv"].view("u1").fill(255), "are NaN"),
    "ue8m0: another method": Corruption(
        "fp8_block_ue8m0", None, "and its tensors are those of deepseek_fp8:ue8m0",
        {"quant_method": "compressed-tensors"},
    ),
    "ue8m0 in float32: infinite": Corruption(
        "fp8_block_ue8m0_in_float32", put("weight_scale_inv", (0, 0), np.inf), "is infinite"
    ),
    "ct fp8 tensor: scale of 0": Corruption("ct_fp8_tensor", put("weight_scale", 0, -0.0), "is -0, the first at"),
    "ct fp8 tensor: inverted": Corruption(
        "ct_fp8_tensor", mapped("weight_scale", lambda s: np.float32(1) / s), "the scales look inverted"
    ),
    "ct fp8 channel: transposed": Corruption(
        "ct_fp8_channel", mapped("weight_scale", np.transpose), "the transpose of the scales would fit"
    ),
    "ct fp8 channel: one scale": Corruption(
        "ct_fp8_channel", mapped("weight_scale", lambda s: s[:1, 0]), "says one scale per channel"
    ),
    "ct fp8 channel bf16: NaN": Corruption("ct_fp8_channel_bf16scale", put("weight_scale", (3, 0), np.nan), "is NaN"),
    "ct fp8 block: another block": Corruption(
        "ct_fp8_block", mapped("weight_scale", twice_as_long), "have the shape (2, 2); these have (2, 4)"
    ),
    "ct int8: negative": Corruption("ct_int8_w8a8", put("weight_scale", (5, 0), -1), "negative, the first at index 5"),
    "ct int8: no scale": Corruption("ct_int8_w8a8", without("weight_scale"), "weight_scale is missing"),
    "ct int4: no shape": Corruption("ct_int4_pack_sym", without("weight_shape"), "weight_shape is missing"),
    "ct int4: group size": Corruption("ct_int4_pack_sym", mapped("weight_scale", twice_as_long), "says groups of 128"),
    "ct int4: words of other bits": Corruption(
        "ct_int4_pack_sym", mapped("weight_packed", lambda w: w[:, :20]), "do not fit the shape (64, 256)"
    ),
    "ct int4 asym: zero points one too high": Corruption(
        "ct_int4_pack_asym", with_fields("weight_zero_point", lambda z: z + 1), "codes too high against the mean codes"
    ),
    "ct int4 asym: no zero points": Corruption(
        "ct_int4_pack_asym", without("weight_zero_point"), "not symmetric, and weight_zero_point is missing"
    ),
    "ct nvfp4: multiplier": Corruption(
        "ct_nvfp4", mapped("weight_global_scale", lambda g: np.float32(1) / g), "looks like a multiplier"
    ),
    "ct nvfp4: no global scale": Corruption("ct_nvfp4", without("weight_global_scale"), "global_scale is missing"),
    "ct nvfp4: negative block scale": Corruption(
        "ct_nvfp4", mapped("weight_scale", lambda s: -s), "are negative"
    ),
    "ct nvfp4: blocks of 32": Corruption("ct_nvfp4", mapped("weight_scale", half), "float8_e4m3fn scale per 32 codes"),
    "ct mxfp4: NaN scale": Corruption("ct_mxfp4", put("weight_scale", (2, 1), 255), "is NaN, the first at index 17"),
    "ct mxfp4: transposed": Corruption("ct_mxfp4", mapped("weight_scale", np.transpose), "transpose of the scales"),
    "ct mxfp8: blocks of 64": Corruption("ct_mxfp8", mapped("weight_scale", half), "MXFP8 has one per 32 codes"),
    "modelopt nvfp4: divisor": Corruption(
        "modelopt_nvfp4", mapped("weight_scale_2", lambda s: np.float32(1) / s), "divisor, as compressed-tensors'"
    ),
    "modelopt nvfp4: no tensor scale": Corruption(
        "modelopt_nvfp4", without("weight_scale_2"), "scale for the whole tensor, and weight_scale_2 is missing"
    ),
    "modelopt nvfp4: tensor scale of 0": Corruption(
        "modelopt_nvfp4", mapped("weight_scale_2", lambda s: s * 0), "its weight_scale_2 is 0"
    ),
    "modelopt fp8: inverted": Corruption(
        "modelopt_fp8", mapped("weight_scale", lambda s: np.float32(1) / s), "the scales look inverted"
    ),
    "modelopt fp8: other algorithm": Corruption(
        "modelopt_fp8", None, "says quant_algo NVFP4, and its", {"quant_algo": "NVFP4"}
    ),
    "modelopt fp8 channel: NaN": Corruption("modelopt_fp8_channel", put("weight_scale", 9, np.nan), "first at index 9"),
    "modelopt mxfp8: ignored": Corruption(
        "modelopt_mxfp8", None, "says that *up_proj is not quantised, and this weight is", {"ignore": ["*up_proj"]}
    ),
    "modelopt mxfp8: ignored by a regular expression": Corruption(
        "modelopt_mxfp8", None, "says that re:.*up_proj is not quantised", {"ignore": ["re:.*up_proj"]}
    ),
    "gptq v1: called v2": Corruption(
        "gptq_v1_asym", None, "the file is v1, or the zero points are off by one", {"checkpoint_format": "gptq_v2"}
    ),
    "gptq v2: called v1": Corruption(
        "gptq_v2_asym", None, "the file is v2, or the zero points are off by one", {"checkpoint_format": "gptq"}
    ),
    "gptq v1 sym: called v2": Corruption(
        "gptq_v1_sym", None, "stored as 7, the middle code in v1", {"checkpoint_format": "gptq_v2"}
    ),
    "gptq v1 sym: zero points off": Corruption(
        "gptq_v1_sym", with_fields("qzeros", lambda z: z + 3), "zero points are stored as 10"
    ),
    "gptq v1 int8: called v2": Corruption(
        "gptq_v1_int8", None, "stored as 127, the middle code in v1", {"checkpoint_format": "gptq_v2"}
    ),
    "gptq v2: zero points two too high": Corruption(
        "gptq_v2_asym", with_fields("qzeros", lambda z: z + 2), "codes too high against the mean codes"
    ),
    "gptq v2: g_idx": Corruption("gptq_v2_act_order", put("g_idx", 11, 4), "names groups from 0 to 4; it has 4"),
    "gptq v2: no g_idx": Corruption("gptq_v2_act_order", without("g_idx"), "says desc_act, and its g_idx is missing"),
    "gptq v2: order": Corruption("gptq_v2_act_order", None, "says desc_act false", {"desc_act": False}),
    "gptq v2: negative scale": Corruption("gptq_v2_asym", put("scales", (0, 3), -1), "negative, the first at index 3"),
    "gptq v2: group size": Corruption("gptq_v2_asym", None, "says groups of 128", {"group_size": 128}),
    "gptq v2: bits": Corruption("gptq_v2_asym", None, "says 8 bits, and its tensors have 4", {"bits": 8}),
    "gptq v2: no zero points": Corruption("gptq_v2_asym", without("qzeros"), "qzeros is missing"),
    "awq: order lost in the codes": Corruption(
        "awq_gemm", with_fields("qweight", plain_order), "nibbles of its qweight are in plain order"
    ),
    "awq: order lost in the zero points": Corruption(
        "awq_gemm", with_fields("qzeros", plain_order), "nibbles of its qzeros are in plain order"
    ),
    "awq: zero points one too low": Corruption(
        "awq_gemm", with_fields("qzeros", lambda z: np.maximum(z.astype(int) - 1, 0)), "codes too low against the mean"
    ),
    "gpt-oss: blocks of another size": Corruption("mxfp4_gpt_oss", mapped("_scales", half), "do not fit blocks"),
    "gpt-oss: no scales": Corruption("mxfp4_gpt_oss", without("_scales"), "gate_up_proj_scales is missing"),
    "torchao mxfp8: flag": Corruption(
        "torchao_mxfp8", None, "is_swizzled_scales is true",
        {WEIGHT: '{"_data": {"block_size": 32, "is_swizzled_scales": true}, "_tensor_data_names": []}'},
    ),
    "torchao mxfp8 swizzled: flag": Corruption(
        "torchao_mxfp8_swizzled", None,
        "is_swizzled_scales is false, for which the scales have the shape (64, 8); these have (32, 32), in tiles",
        {WEIGHT: '{"_data": {"block_size": 32, "is_swizzled_scales": false}, "_tensor_data_names": []}'},
    ),
    "torchao mxfp4: metadata": Corruption("torchao_mxfp4", None, "do not name its class", {WEIGHT: "{}"}),
    "torchao nvfp4: inverted": Corruption(
        "torchao_nvfp4", mapped("_weight_per_tensor_scale", lambda s: np.float32(1) / s), "weights are as large as"
    ),
    "torchao nvfp4: no tensor scale": Corruption(
        "torchao_nvfp4_swizzled", without("_weight_per_tensor_scale"), "per_tensor_scale, which the file does not hold"
    ),
    "torchao int8: scale": Corruption("torchao_int8", put("_weight_scale", (0, 0), np.nan), "is NaN"),
    "torchao int4: zero points": Corruption(
        "torchao_intx4_group", mapped("_weight_zero_point", lambda z: (z + 1).astype(np.int8)), "codes too high"
    ),
    "torchao int4: block size": Corruption("torchao_intx4_group", lambda a: a.update(
        _weight_scale=half(a["_weight_scale"]).copy(), _weight_zero_point=half(a["_weight_zero_point"]).copy()),
        "its block_size is [1, 32]",
    ),
    "bnb nf4: negative": Corruption("bnb_nf4", put("weight.absmax", 4, -1), "negative, the first at index 4"),
    "bnb nf4: no table": Corruption("bnb_nf4", without("weight.quant_map"), "quant_map is missing"),
    "bnb nf4: another type": Corruption("bnb_nf4", None, "says fp4, and its tensors", {"bnb_4bit_quant_type": "fp4"}),
    "bnb nf4: another table": Corruption("bnb_nf4", put("weight.quant_map", 3, 0.5), "its quant_map is not NF4's"),
    "bnb fp4: cut": Corruption("bnb_fp4", mapped("weight", lambda w: w[:-1]), "8191 bytes of codes do not fit"),
    "bnb double: no nested scales": Corruption(
        "bnb_nf4_double", without("weight.nested_absmax"), "their nested_absmax is missing"
    ),
    "bnb double: NaN": Corruption("bnb_nf4_double", put("weight.nested_absmax", 0, np.nan), "is NaN"),
    "bnb double: another table": Corruption(
        "bnb_nf4_double", put("weight.nested_quant_map", 200, 0.5), "bitsandbytes' 8-bit table, first at index 200"
    ),
    "bnb double: configuration of plain scales": Corruption(
        "bnb_nf4_double", None, "double_quant false, and its scales are quantised", {"bnb_4bit_use_double_quant": False}
    ),
    "bnb nf4: configuration of quantised scales": Corruption(
        "bnb_nf4", None, "double_quant true, and its scales are plain", {"bnb_4bit_use_double_quant": True}
    ),
    "bnb int8: infinite": Corruption("bnb_int8", put("SCB", 3, np.inf), "SCB is infinite, the first at index 3"),
    "bnb int8: no scale": Corruption("bnb_int8", without("SCB"), "SCB is missing"),
    "hqq: negative scale": Corruption("hqq_int4_axis0", put("scale", (0, 2), -1), "negative, the first at index 2"),
    "hqq: zero points one too high": Corruption(
        "hqq_int4_axis0", mapped("zero", lambda z: z + np.float32(1)), "codes too high against the mean codes"
    ),
    "hqq: zero points one too low": Corruption(
        "hqq_int4_axis1", mapped("zero", lambda z: z - np.float32(1)), "codes too low against the mean"
    ),
    "hqq: transposed": Corruption("hqq_int4_axis1", lambda a: a.update(scale=a["scale"].T.copy()), "transpose"),
    "hqq: another number of bits": Corruption("hqq_int4_plain", put("nbits", (), 8), "stored nbits is 8, and its"),
    "hqq: another group size": Corruption("hqq_int2_plain", put("group_size", (), 32), "stored group_size is 32, and"),
    "hqq: configuration of other bits": Corruption(
        "hqq_int8_plain", None, "says nbits 4, and its tensors are those of 8",
        {"quant_config": {"weight_quant_params": {"nbits": 4}}},
    ),
    "hqq: configuration of another axis": Corruption(
        "hqq_int1_plain", None, "says axis 0, and its tensors are those of 1",
        {"quant_config": {"weight_quant_params": {"axis": 0}}},
    ),
    "hqq: no zero points": Corruption("hqq_int4_axis1", without("zero"), "zero is missing"),
}  # fmt: skip


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupted_copy_is_diagnosed(corruption: str, tmp_path: Path) -> None:
    layout, change, said, settings = CORRUPTIONS[corruption]
    report = fp.analysis.verify(copied(layout, tmp_path, change, **settings))
    assert not report.ok
    assert any(said in problem for problem in report.problems), report.problems
    assert all(problem.startswith("model.layers.0.mlp.") and problem.endswith(".") for problem in report.problems)


def test_every_layout_has_a_corrupted_copy() -> None:
    assert {one.layout for one in CORRUPTIONS.values()} == set(ROWS) - {"gguf", "torchao_fp8_row"}
