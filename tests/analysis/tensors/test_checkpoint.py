"""`fp.analysis.open`: checkpoints as mappings of names to real values, and what is wrong with those that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.tensor import TensorFileError
from fpsim.testing import assert_bits_equal
from tests.analysis.tensors.test_layouts import CODES, ROWS, WEIGHT, file_of, safetensors

LAYOUTS = {
    "fp8_block_deepseek_v3": "deepseek_fp8", "fp8_block_ue8m0": "deepseek_fp8:ue8m0",
    "ct_fp8_tensor": "compressed-tensors:fp8_tensor", "ct_fp8_channel": "compressed-tensors:fp8_channel",
    "ct_fp8_block": "compressed-tensors:fp8_block", "ct_int8_w8a8": "compressed-tensors:int8",
    "ct_int4_pack_sym": "compressed-tensors:int4", "ct_int4_pack_asym": "compressed-tensors:int4_asym",
    "ct_nvfp4": "compressed-tensors:nvfp4", "ct_mxfp4": "compressed-tensors:mxfp4", "ct_mxfp8": "mxfp8",
    "modelopt_nvfp4": "modelopt:nvfp4", "modelopt_fp8": "modelopt:fp8", "modelopt_fp8_channel": "modelopt:fp8_channel",
    "gptq_v1_asym": "gptq", "gptq_v1_sym": "gptq", "gptq_v1_int8": "gptq", "gptq_v2_asym": "gptq_v2",
    "gptq_v2_act_order": "gptq_v2", "awq_gemm": "awq", "mxfp4_gpt_oss": "mxfp4", "torchao_mxfp8": "torchao:mxfp8",
    "torchao_mxfp8_swizzled": "torchao:mxfp8_swizzled", "torchao_nvfp4_swizzled": "torchao:nvfp4_swizzled",
    "torchao_nvfp4": "torchao:nvfp4", "torchao_mxfp4": "torchao:mxfp4",
    "torchao_int8": "torchao:int8", "torchao_fp8_row": "torchao:fp8", "bnb_nf4": "bitsandbytes:nf4",
    "bnb_nf4_double": "bitsandbytes:nf4_double", "bnb_fp4": "bitsandbytes:fp4", "bnb_int8": "bitsandbytes:int8",
    "hqq_int4_axis0": "hqq:int4", "hqq_int4_axis1": "hqq:int4",
    "hqq_int8_plain": "hqq:int8", "hqq_int4_plain": "hqq:int4", "hqq_int2_plain": "hqq:int2",
    "hqq_int1_plain": "hqq:int1",
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_recognised_without_a_configuration(layout: str, tmp_path: Path) -> None:
    checkpoint = fp.analysis.open(file_of(layout, tmp_path))
    assert checkpoint.layout == LAYOUTS[layout]
    assert not [note for note in checkpoint.notes if "holds codes" in note]


@pytest.mark.parametrize("layout", ["ct_mxfp8", "modelopt_mxfp8"])
def test_the_configuration_tells_libraries_apart(layout: str, tmp_path: Path) -> None:
    path = file_of(layout, tmp_path)
    config = {"quantization_config": ROWS[layout]["config"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    library = "compressed-tensors" if layout.startswith("ct") else "modelopt"
    assert fp.analysis.open(path).layout == f"{library}:mxfp8"
    if library == "modelopt":
        (tmp_path / "config.json").unlink()
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(ROWS[layout]["config"]["hf_quant_config"]))
        assert fp.analysis.open(path).layout == "modelopt:mxfp8"


def test_gguf_names_its_types(tmp_path: Path) -> None:
    checkpoint = fp.analysis.open(file_of("gguf", tmp_path))
    assert checkpoint.layouts["blk.4.ffn_up.weight"] == "gguf:Q8_0"
    assert checkpoint.layouts["blk.9.ffn_up.weight"] == "gguf:Q6_K"
    assert checkpoint.layout.count(" + ") == 13


PLAIN: dict[str, Any] = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b.bias": np.array([0.5, 0.1])}


def test_a_mapping_has_names_values_and_a_layout(tmp_path: Path) -> None:
    checkpoint = fp.analysis.open(safetensors(tmp_path / "m.safetensors", PLAIN))
    assert (list(checkpoint), len(checkpoint), checkpoint.layout) == (list(PLAIN), 2, "plain")
    assert_bits_equal(checkpoint["a.weight"], PLAIN["a.weight"])
    assert checkpoint["b.bias"].tolist() == np.array([0.5, 0.1], "f4").tolist()
    assert "a.weight" in checkpoint
    assert repr(checkpoint).endswith("layout='plain', 2 tensors, 8 values of 40 bits)")
    with pytest.raises(KeyError, match=r"has no tensor 'a.wieght'. Did you mean 'a.weight'"):
        checkpoint["a.wieght"]


def test_only_the_looked_up_tensor_is_read(tmp_path: Path) -> None:
    """The others may have other values by then."""
    path = safetensors(tmp_path / "m.safetensors", PLAIN)
    checkpoint = fp.analysis.open(path)
    data = path.read_bytes()
    path.write_bytes(data[:-8] + bytes(8))
    assert "b.bias" in checkpoint
    assert checkpoint["a.weight"][1, 2] == 5
    assert not checkpoint["b.bias"][-1]
    path.write_bytes(data[:-8])
    with pytest.raises(TensorFileError, match="the file has changed since it was opened"):
        checkpoint["a.weight"]


def test_a_file_that_is_written_anew_is_not_read_at_old_places(tmp_path: Path) -> None:
    safetensors(tmp_path / "m.safetensors", PLAIN)
    np.savez(tmp_path / "m.npz", **PLAIN)
    opened = [fp.analysis.open(tmp_path / name) for name in ("m.safetensors", "m.npz")]
    more = {"0": np.ones(5, np.float32), **{name: array.astype(np.float16) for name, array in PLAIN.items()}}
    safetensors(tmp_path / "m.safetensors", more)
    np.savez(tmp_path / "m.npz", **more)
    for checkpoint in opened:
        with pytest.raises(TensorFileError, match="the file has changed since it was opened"):
            checkpoint["a.weight"]


def sharded(folder: Path) -> Path:
    safetensors(folder / "model-1.safetensors", {"w.weight": CODES.view(ml_dtypes.float8_e4m3fn)})
    safetensors(
        folder / "model-2.safetensors", {"w.weight_scale": np.array([[2]], "f4"), "norm.weight": np.ones(8, "f4")}
    )
    weights = {"w.weight": 1, "w.weight_scale": 2, "norm.weight": 2}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"model-{i}.safetensors" for name, i in weights.items()}}))
    return index


def test_an_index_may_name_tensors_that_are_left_out_in_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run: 1"
    folder.mkdir()
    np.savez(folder / "model.npz", w=np.ones((2, 2), np.float32), mask=np.ones(3, bool))
    names = dict.fromkeys(("w", "mask"), "model.npz")
    (folder / "model.npz.index.json").write_text(json.dumps({"weight_map": names}))
    checkpoint = fp.analysis.open(folder)
    assert list(checkpoint) == ["w"]
    assert checkpoint.notes == (f"{folder / 'model.npz'}: mask left out, it holds bool and not floats",)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    safetensors(tmp_path / "consolidated.safetensors", PLAIN)  # of another kind, which the index does not name
    for path in (tmp_path, index, str(index)):
        checkpoint = fp.analysis.open(path)
        assert sorted(checkpoint) == ["norm.weight", "w.weight"]
        assert_bits_equal(checkpoint["w.weight"], 2 * fp.decode(CODES, "e4m3"))


def test_a_missing_shard_or_tensor_is_named(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    safetensors(tmp_path / "model-2.safetensors", {"norm.weight": np.ones(8, np.float32)})
    with pytest.raises(
        TensorFileError, match=r"model-2.safetensors: w.weight_scale is missing, although the index names this file"
    ):
        fp.analysis.open(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(TensorFileError, match=r"its shard model-2\.safetensors is missing; wanted 2 files"):
        fp.analysis.open(tmp_path)
    for text in ("{}", "[", '{"weight_map": {"w": "../x"}}', '{"weight_map": {}}'):
        index.write_text(text)
        with pytest.raises(TensorFileError, match=r"index\.json: damaged"):
            fp.analysis.open(tmp_path)


def test_what_is_no_checkpoint_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match="no tensor file in this folder"):
        fp.analysis.open(tmp_path)
    with pytest.raises(TensorFileError, match="no such file"):
        fp.analysis.open(tmp_path / "m.safetensors")
    path = safetensors(tmp_path / "m.safetensors", {"a": np.arange(3, dtype=np.int32)})
    with pytest.raises(TensorFileError, match="no tensor of floats in it; a left out, it holds I32"):
        fp.analysis.open(path)
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, float16; got 'bf16'"):
        fp.analysis.open(path, "bf16")
    safetensors(tmp_path / "n.safetensors", PLAIN)
    safetensors(tmp_path / "m.safetensors", PLAIN)
    with pytest.raises(TensorFileError, match=r"a.weight is in several files of the folder"):
        fp.analysis.open(tmp_path)


@pytest.mark.parametrize("layout", [name for name in ROWS if name != "gguf"])
def test_a_file_cut_short_is_refused(layout: str, tmp_path: Path) -> None:
    path = file_of(layout, tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TensorFileError, match="damaged"):
        fp.analysis.open(path)


def test_a_block_of_the_configuration_decides_where_several_fit(tmp_path: Path) -> None:
    scales = np.array([[1], [2], [3]], "f4")
    codes = np.full((144, 8), 0x38, np.uint8).view(ml_dtypes.float8_e4m3fn)
    path = safetensors(tmp_path / "m.safetensors", {"w.weight": codes, "w.weight_scale_inv": scales})
    first = [int(np.sum(fp.analysis.open(path)[name] == 1)) for name in ("w.weight",)]
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [60, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (first, int(np.sum(fp.analysis.open(path)["w.weight"] == 1))) == ([64 * 8], 60 * 8)


DAMAGED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a state that is no JSON": ("bnb_nf4", {"weight.quant_state.bitsandbytes__nf4": np.array([91], "u1")}, "not JSON"),
    "scales of another block size": ("bnb_nf4", {"weight.absmax": np.ones(7, "f4")}, "do not fit 256 blocks of 64"),
    "nested scales of another count": ("bnb_nf4_double", {"weight.nested_absmax": np.ones(2, "f4")}, "2 nested scales"),
    "another order of rows": ("bnb_int8", {"weight_format": np.array([2], "u1")}, "its weight_format is 2"),
    "scales of other rows": ("bnb_int8", {"SCB": np.ones(3, "f4")}, "does not fit the rows"),
    "an unknown packing": ("hqq_int4_axis1", {"packing": np.frombuffer(b"3bit_32", "u1")}, "packing is '3bit_32'"),
    "zero points of other groups": ("hqq_int4_axis1", {"zero": np.ones((2, 1), "f4")}, "do not fit groups"),
    "a g_idx of floats": ("gptq_v2_asym", {"g_idx": np.zeros(256, "f4")}, "its g_idx holds float32; wanted int32"),
    "an empty g_idx": ("gptq_v2_asym", {"g_idx": np.zeros(0, "i4")}, "its g_idx has 0 entries; it has 256 inputs"),
    "a state of floats": ("bnb_nf4", {"weight.quant_state.bitsandbytes__nf4": np.ones(9, "f4")}, "is not JSON"),
    "zero points of other blocks": (
        "torchao_int8",
        {"_weight_zero_point": np.ones((8, 1), "i1")},
        "(8, 1) do not fit its scales",
    ),
    "a negative shape": ("hqq_int4_axis0", {"shape": np.array([-64, -256])}, "do not fit the shape (-64, -256)"),
    "another shape": ("hqq_int4_axis0", {"shape": np.array([64, 128])}, "in 4 bits do not fit the shape (64, 128)"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_parts_that_contradict_each_other_leave_a_weight_out(damage: str, tmp_path: Path) -> None:
    from fpsim.analysis.tensors.files import read_stored
    from fpsim.analysis.tensors.layouts.parts import whole

    layout, changes, said = DAMAGED[damage]
    stored = read_stored(file_of(layout, tmp_path))[0]
    arrays = {one.name: np.asarray(whole(one)) for one in stored}
    arrays |= {WEIGHT.removesuffix("weight") + name: np.asarray(array) for name, array in changes.items()}
    path = safetensors(tmp_path / "d.safetensors", {**arrays, "norm.weight": np.ones(4, np.float32)})
    checkpoint = fp.analysis.open(path)
    assert WEIGHT not in checkpoint
    assert [note for note in checkpoint.notes if said in note], checkpoint.notes


def test_a_name_that_occurs_twice_and_a_shard_of_another_extension_are_errors_in_a_line(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a.b": torch.ones(2), "a": {"b": torch.ones(3)}}, tmp_path / "twice.pt")
    with pytest.raises(TensorFileError, match=r"twice\.pt: a\.b occurs twice in it$"):
        fp.analysis.open(tmp_path / "twice.pt")
    (tmp_path / "w.dat").write_bytes(b"xx")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "w.dat"}}))
    with pytest.raises(TensorFileError, match=r"w\.dat: unknown file extension"):
        fp.analysis.open(tmp_path)
    assert fp.analysis.verify(tmp_path).problems[0].startswith(f"{tmp_path / 'w.dat'}: unknown file extension")


def test_float64_beyond_float32_is_infinite_without_a_warning(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", a=np.array([1e300, -1e-300, 1]))
    with np.errstate(all="raise"):
        assert fp.analysis.open(tmp_path / "m.npz")["a"].tolist() == [np.inf, -0.0, 1]
