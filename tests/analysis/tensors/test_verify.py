"""`fp.analysis.verify`: files of the libraries pass, and a corrupted copy of each layout is diagnosed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.files import read_stored, safetensors_metadata
from fpsim.analysis.tensors.layouts.unpacking import AWQ_ORDER
from fpsim.analysis.tensors.tensor import TensorFileError
from fpsim.analysis.tensors.verifying.report import LayoutReport
from tests.analysis.tensors.test_layouts import ROWS, WEIGHT, file_of, safetensors

Arrays = dict[str, np.ndarray[Any, Any]]
PREFIX = WEIGHT.removesuffix("weight")
FAULTY = {"torchao_fp8_row": "torchao's Float8WeightOnlyConfig writes a scale of 0"}  # as the library wrote them


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


@pytest.mark.parametrize("layout", ROWS)
def test_files_of_the_libraries_pass(layout: str, tmp_path: Path) -> None:
    if layout == "gguf":
        pytest.importorskip("gguf")
    report = fp.analysis.verify(copied(layout, tmp_path))
    if layout in FAULTY:
        assert len(report.problems) == 1
        assert FAULTY[layout] in report.problems[0]
    else:
        assert report.ok, report.problems
    assert report.weights == (14 if layout == "gguf" else 1)
    assert any("cannot be told from the file alone" in note for note in report.notes)


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


def mapped(name: str, function: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    """Return a change of a whole tensor."""

    def change(arrays: Arrays) -> None:
        arrays[name] = np.ascontiguousarray(function(arrays[name]))

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
        "fp8_block_deepseek_v3", put("weight_scale_inv", (0, 1), np.nan), "scales in weight_scale_inv are NaN"
    ),
    "deepseek: negative scale": Corruption(
        "fp8_block_deepseek_v3", put("weight_scale_inv", (1, 1), -0.01), "are negative, the first at 3"
    ),
    "deepseek: NaN code": Corruption("fp8_block_deepseek_v3", put("weight", (7, 9), NAN8), "first in row 7"),
    "deepseek: inverted scales": Corruption(
        "fp8_block_deepseek_v3", mapped("weight_scale_inv", lambda s: np.float32(1) / s), "the scales look inverted"
    ),
    "deepseek: no scales": Corruption(
        "fp8_block_deepseek_v3", without("weight_scale_inv"), "weight_scale_inv is missing"
    ),
    "deepseek: another block size": Corruption(
        "fp8_block_deepseek_v3", mapped("weight_scale_inv", twice_as_long), "says blocks of 128 x 128, which are (2, 2)"
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
        "fp8_block_ue8m0_in_float32", put("weight_scale_inv", (0, 0), np.inf), "are infinite"
    ),
    "ct fp8 tensor: scale of 0": Corruption("ct_fp8_tensor", put("weight_scale", 0, -0.0), "are -0, the first at 0"),
    "ct fp8 tensor: inverted": Corruption(
        "ct_fp8_tensor", mapped("weight_scale", lambda s: np.float32(1) / s), "the scales look inverted"
    ),
    "ct fp8 channel: transposed": Corruption(
        "ct_fp8_channel", mapped("weight_scale", np.transpose), "the transpose of its scales would fit"
    ),
    "ct fp8 channel: one scale": Corruption(
        "ct_fp8_channel", mapped("weight_scale", lambda s: s[:1, 0]), "says a scale for each channel"
    ),
    "ct fp8 channel bf16: NaN": Corruption("ct_fp8_channel_bf16scale", put("weight_scale", (3, 0), np.nan), "are NaN"),
    "ct fp8 block: another block": Corruption(
        "ct_fp8_block", mapped("weight_scale", twice_as_long), "says blocks of 128 x 128, which are (2, 2)"
    ),
    "ct int8: negative": Corruption("ct_int8_w8a8", put("weight_scale", (5, 0), -1), "negative, the first at 5"),
    "ct int8: no scale": Corruption("ct_int8_w8a8", without("weight_scale"), "weight_scale is missing"),
    "ct int4: no shape": Corruption("ct_int4_pack_sym", without("weight_shape"), "weight_shape is missing"),
    "ct int4: group size": Corruption("ct_int4_pack_sym", mapped("weight_scale", twice_as_long), "says groups of 128"),
    "ct int4: words of other bits": Corruption(
        "ct_int4_pack_sym", mapped("weight_packed", lambda w: w[:, :20]), "fit no shape (64, 256)"
    ),
    "ct int4 asym: zero points one too high": Corruption(
        "ct_int4_pack_asym", with_fields("weight_zero_point", lambda z: z + 1), "codes too high for the mean codes"
    ),
    "ct int4 asym: no zero points": Corruption(
        "ct_int4_pack_asym", without("weight_zero_point"), "says not symmetric, and its weight_zero_point is missing"
    ),
    "ct nvfp4: multiplier": Corruption(
        "ct_nvfp4", mapped("weight_global_scale", lambda g: np.float32(1) / g), "looks like a multiplier"
    ),
    "ct nvfp4: no global scale": Corruption("ct_nvfp4", without("weight_global_scale"), "global_scale is missing"),
    "ct nvfp4: negative block scale": Corruption(
        "ct_nvfp4", mapped("weight_scale", lambda s: -s), "are negative"
    ),
    "ct nvfp4: blocks of 32": Corruption("ct_nvfp4", mapped("weight_scale", half), "a scale for each 32 codes"),
    "ct mxfp4: NaN scale": Corruption("ct_mxfp4", put("weight_scale", (2, 1), 255), "are NaN, the first at 17"),
    "ct mxfp4: transposed": Corruption("ct_mxfp4", mapped("weight_scale", np.transpose), "transpose of its scales"),
    "ct mxfp8: blocks of 64": Corruption("ct_mxfp8", mapped("weight_scale", half), "MXFP8 has one for each 32 codes"),
    "modelopt nvfp4: divisor": Corruption(
        "modelopt_nvfp4", mapped("weight_scale_2", lambda s: np.float32(1) / s), "divisor, as compressed-tensors'"
    ),
    "modelopt nvfp4: no tensor scale": Corruption(
        "modelopt_nvfp4", without("weight_scale_2"), "NVFP4 has a scale for the tensor; weight_scale_2 is missing"
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
    "modelopt fp8 channel: NaN": Corruption("modelopt_fp8_channel", put("weight_scale", 9, np.nan), "the first at 9"),
    "modelopt mxfp8: ignored": Corruption(
        "modelopt_mxfp8", None, "leaves *up_proj unquantised, and it is quantised", {"ignore": ["*up_proj"]}
    ),
    "modelopt mxfp8: ignored by a regular expression": Corruption(
        "modelopt_mxfp8", None, "leaves re:.*up_proj unquantised", {"ignore": ["re:.*up_proj"]}
    ),
    "gptq v1: called v2": Corruption(
        "gptq_v1_asym", None, "this is v1, or the zero points are off by one", {"checkpoint_format": "gptq_v2"}
    ),
    "gptq v2: called v1": Corruption(
        "gptq_v2_asym", None, "this is v2, or the zero points are off by one", {"checkpoint_format": "gptq"}
    ),
    "gptq v1 sym: called v2": Corruption(
        "gptq_v1_sym", None, "stored as 7, which is v1's middle", {"checkpoint_format": "gptq_v2"}
    ),
    "gptq v1 sym: zero points off": Corruption(
        "gptq_v1_sym", with_fields("qzeros", lambda z: z + 3), "zero points are stored as 10"
    ),
    "gptq v1 int8: called v2": Corruption(
        "gptq_v1_int8", None, "stored as 127, which is v1's middle", {"checkpoint_format": "gptq_v2"}
    ),
    "gptq v2: zero points two too high": Corruption(
        "gptq_v2_asym", with_fields("qzeros", lambda z: z + 2), "codes too high for the mean codes"
    ),
    "gptq v2: g_idx": Corruption("gptq_v2_act_order", put("g_idx", 11, 4), "names groups from 0 to 4; it has 4"),
    "gptq v2: no g_idx": Corruption("gptq_v2_act_order", without("g_idx"), "says desc_act, and its g_idx is missing"),
    "gptq v2: order": Corruption("gptq_v2_act_order", None, "says desc_act false", {"desc_act": False}),
    "gptq v2: negative scale": Corruption("gptq_v2_asym", put("scales", (0, 3), -1), "negative, the first at 3"),
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
        "awq_gemm", with_fields("qzeros", lambda z: np.maximum(z.astype(int) - 1, 0)), "codes too low for the mean"
    ),
    "gpt-oss: blocks of another size": Corruption("mxfp4_gpt_oss", mapped("_scales", half), "fit no blocks"),
    "gpt-oss: no scales": Corruption("mxfp4_gpt_oss", without("_scales"), "gate_up_proj_scales is missing"),
    "torchao mxfp8: flag": Corruption(
        "torchao_mxfp8", None, "is_swizzled_scales is true",
        {WEIGHT: '{"_data": {"block_size": 32, "is_swizzled_scales": true}, "_tensor_data_names": []}'},
    ),
    "torchao mxfp8 swizzled: flag": Corruption(
        "torchao_mxfp8_swizzled", None,
        "is_swizzled_scales is false, which is a shape of (64, 8), and its scales have (32, 32), in tiles of 128 x 4",
        {WEIGHT: '{"_data": {"block_size": 32, "is_swizzled_scales": false}, "_tensor_data_names": []}'},
    ),
    "torchao mxfp4: metadata": Corruption("torchao_mxfp4", None, "do not name its class", {WEIGHT: "{}"}),
    "torchao nvfp4: inverted": Corruption(
        "torchao_nvfp4", mapped("_weight_per_tensor_scale", lambda s: np.float32(1) / s), "makes weights as large as"
    ),
    "torchao nvfp4: no tensor scale": Corruption(
        "torchao_nvfp4_swizzled", without("_weight_per_tensor_scale"), "per_tensor_scale, which the file lacks"
    ),
    "torchao int8: scale": Corruption("torchao_int8", put("_weight_scale", (0, 0), np.nan), "are NaN"),
    "torchao int4: zero points": Corruption(
        "torchao_intx4_group", mapped("_weight_zero_point", lambda z: (z + 1).astype(np.int8)), "codes too high"
    ),
    "torchao int4: block size": Corruption("torchao_intx4_group", lambda a: a.update(
        _weight_scale=half(a["_weight_scale"]).copy(), _weight_zero_point=half(a["_weight_zero_point"]).copy()),
        "its block_size is [1, 32]",
    ),
    "bnb nf4: negative": Corruption("bnb_nf4", put("weight.absmax", 4, -1), "negative, the first at 4"),
    "bnb nf4: no table": Corruption("bnb_nf4", without("weight.quant_map"), "quant_map is missing"),
    "bnb nf4: another type": Corruption("bnb_nf4", None, "says fp4, and its tensors", {"bnb_4bit_quant_type": "fp4"}),
    "bnb nf4: another table": Corruption("bnb_nf4", put("weight.quant_map", 3, 0.5), "its quant_map is not NF4's"),
    "bnb fp4: cut": Corruption("bnb_fp4", mapped("weight", lambda w: w[:-1]), "8191 bytes of codes fit no shape"),
    "bnb double: no nested scales": Corruption(
        "bnb_nf4_double", without("weight.nested_absmax"), "their nested_absmax is missing"
    ),
    "bnb double: NaN": Corruption("bnb_nf4_double", put("weight.nested_absmax", 0, np.nan), "are NaN"),
    "bnb int8: no scale": Corruption("bnb_int8", without("SCB"), "SCB is missing"),
    "hqq: negative scale": Corruption("hqq_int4_axis0", put("scale", (0, 2), -1), "negative, the first at 2"),
    "hqq: zero points one too high": Corruption(
        "hqq_int4_axis0", mapped("zero", lambda z: z + np.float32(1)), "codes too high for the mean codes"
    ),
    "hqq: zero points one too low": Corruption(
        "hqq_int4_axis1", mapped("zero", lambda z: z - np.float32(1)), "codes too low for the mean"
    ),
    "hqq: transposed": Corruption("hqq_int4_axis1", lambda a: a.update(scale=a["scale"].T.copy()), "transpose"),
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


@pytest.mark.parametrize("kind", range(14))
def test_a_scale_of_gguf_that_is_not_finite_is_found(kind: int, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = copied("gguf", tmp_path)
    data = bytearray(path.read_bytes())
    [tensor] = [one for one in gguf.GGUFReader(path).tensors if one.name == f"blk.{kind}.ffn_up.weight"]
    _, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
    name = tensor.tensor_type.name
    start = int(tensor.data_offset) + 3 * size
    at = {"Q6_K": size - 2, "Q2_K": 80, "Q3_K": 108}.get(name, 0)
    if name in ("MXFP4", "NVFP4"):
        if name == "NVFP4":
            pytest.skip("UE4M3 has no Inf, and gguf reads its NaN as 0")
        data[start] = 255
        data[start + 1 : start + size] = bytes([0x77]) * (size - 1)
        with np.errstate(over="ignore"):
            decoded = gguf.quants.dequantize(np.frombuffer(data[start : start + size], np.uint8), tensor.tensor_type)
        if np.isfinite(decoded).all():
            pytest.skip("gguf reads the code of NaN as a power of two")
    else:
        data[start + at : start + at + 2] = struct.pack("<e", np.inf)
    path.write_bytes(data)
    report = fp.analysis.verify(path)
    assert not report.ok
    assert f"blk.{kind}.ffn_up.weight: values of its {name} blocks are not finite" in report.problems[0]


@pytest.mark.parametrize("layout", ROWS)
def test_a_file_cut_short_is_a_problem(layout: str, tmp_path: Path) -> None:
    path = file_of(layout, tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    report = fp.analysis.verify(path)
    assert (report.layout, report.weights, report.ok) == ("", 0, False)
    assert "damaged" in report.problems[0]


@pytest.mark.parametrize("layout", ["ct_nvfp4", "modelopt_nvfp4", "bnb_nf4", "ct_mxfp4"])
def test_swapped_nibbles_need_a_reference(layout: str, tmp_path: Path) -> None:
    """From the file alone they cannot be told, and the report says so."""
    name = "weight_packed" if layout.startswith("ct") else "weight"
    path = copied(layout, tmp_path, mapped(name, lambda codes: codes >> 4 | codes << 4))
    report = fp.analysis.verify(path)
    assert report.ok
    assert any("swapped nibbles" in note for note in report.notes)
    with np.load(Path(__file__).parents[2] / "data" / "layouts.npz") as files:
        source = (files["source"].astype(np.uint32) << 16).view(np.float32)
    report = fp.analysis.verify(path, reference={WEIGHT: source})
    assert "with neighbours exchanged (nibbles swapped) it would be 0." in report.problems[0]
    (tmp_path / "good").mkdir()
    assert fp.analysis.verify(copied(layout, tmp_path / "good"), reference={WEIGHT: source}).ok


def test_faults_of_readers_are_notes(tmp_path: Path) -> None:
    notes = fp.analysis.verify(copied("gptq_v1_asym", tmp_path)).notes
    assert any("readers that add 1 to each field read 5 of 256 wrongly" in note for note in notes)
    (tmp_path / "b").mkdir()
    notes = fp.analysis.verify(copied("modelopt_nvfp4", tmp_path / "b")).notes
    assert any("711 of its codes are that of -0, which ModelOpt reads as 0" in note for note in notes)
    codes = np.full((576, 128), 0x7E, np.uint8).view(ml_dtypes.float8_e4m3fn)
    scales = np.full((5, 1), 0.001, np.float32)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}}
    folder = tmp_path / "c"
    folder.mkdir()
    safetensors(folder / "m.safetensors", {"w.weight": codes, "w.weight_scale_inv": scales})
    (folder / "config.json").write_text(json.dumps(config))
    report = fp.analysis.verify(folder)
    assert report.ok
    assert any("576 rows are no whole number of 5 blocks" in note for note in report.notes)
    assert any("5 of its 5 float32 scales are no powers of two" in note for note in report.notes)


def test_equal_findings_are_folded_and_reports_are_saved(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    for i in range(3):
        arrays[f"l.{i}.weight"] = np.ones((4, 8), np.int8)
        arrays[f"l.{i}.weight_scale"] = np.full((4, 1), np.nan, np.float32)
    report = fp.analysis.verify(safetensors(tmp_path / "m.safetensors", arrays))
    assert report.problems == [
        "l.0.weight: 4 of its 4 scales in weight_scale are NaN, the first at 0; scales are positive. "
        "The same holds for 2 further weights."
    ]
    assert len(report.to_frame()) == 4
    assert "l.0.weight" in report._repr_html_()
    report.save(tmp_path / "r.json")
    assert LayoutReport.load(tmp_path / "r.json") == report
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is no report that LayoutReport\.save wrote"):
        LayoutReport.load(tmp_path / "r.json")


def test_plain_checkpoints_pass_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"a.weight": np.ones((4, 4), np.float32)})
    report = fp.analysis.verify(path)
    assert (report.layout, report.ok, report.notes) == ("plain", True, [])
    with pytest.raises(TensorFileError, match="no such file"):
        fp.analysis.verify(tmp_path / "n.safetensors")


def test_fp8_without_scales_may_be_a_plain_cast(tmp_path: Path) -> None:
    """As in checkpoints of image models, which have no configuration."""
    codes = np.full((8, 8), 0x38, np.uint8).view(ml_dtypes.float8_e4m3fn)
    arrays = {"a.weight": codes, "a.scales": np.ones(8, np.float32)}
    report = fp.analysis.verify(safetensors(tmp_path / "m.safetensors", arrays))
    assert (report.layout, report.problems) == ("plain", [])
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert "a.weight holds codes of float8_e4m3fn" in fp.analysis.verify(tmp_path).problems[0]


def test_fp8_of_one_scale_may_be_called_fp8(tmp_path: Path) -> None:
    """As in checkpoints of vLLM's own method."""
    codes = np.full((8, 8), 0x38, np.uint8).view(ml_dtypes.float8_e4m3fn)
    scale = np.array([0.01], np.float32)
    safetensors(tmp_path / "m.safetensors", {"a.weight": codes, "a.weight_scale": scale, "a.input_scale": scale})
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert fp.analysis.verify(tmp_path).ok


def test_scales_without_codes_are_found(tmp_path: Path) -> None:
    arrays = {"a.weight": np.ones((4, 4), np.float32), "b.weight_scale": np.ones((4, 1), np.float32)}
    report = fp.analysis.verify(safetensors(tmp_path / "m.safetensors", arrays))
    assert report.problems == [
        "b.weight: b.weight_scale is there, and its codes b.weight or b.weight_packed are missing."
    ]  # fmt: skip
