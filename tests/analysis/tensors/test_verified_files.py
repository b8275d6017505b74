"""`fp.analysis.verify`: damaged files, notes, reports, and checkpoints without scales."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.files import read_stored, safetensors_metadata
from fpsim.analysis.tensors.tensor import TensorFileError
from fpsim.analysis.tensors.verifying.report import LayoutReport
from fpsim.analysis.tensors.writing.packed import words_of
from tests.analysis.tensors.test_layouts import ROWS, WEIGHT, file_of, safetensors
from tests.analysis.tensors.verify_cases import copied, mapped


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
    assert any("711 of its codes are the code of -0, which ModelOpt reads as 0" in note for note in notes)
    codes = np.full((576, 128), 0x7E, np.uint8).view(ml_dtypes.float8_e4m3fn)
    scales = np.full((5, 1), 0.001, np.float32)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}}
    folder = tmp_path / "c"
    folder.mkdir()
    safetensors(folder / "m.safetensors", {"w.weight": codes, "w.weight_scale_inv": scales})
    (folder / "config.json").write_text(json.dumps(config))
    report = fp.analysis.verify(folder)
    assert report.ok
    assert any("576 rows do not divide into 5 equal blocks" in note for note in report.notes)
    assert any("5 of its 5 float32 scales are not powers of two" in note for note in report.notes)


def test_equal_findings_are_folded_and_reports_are_saved(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    for i in range(3):
        arrays[f"l.{i}.weight"] = np.ones((4, 8), np.int8)
        arrays[f"l.{i}.weight_scale"] = np.full((4, 1), np.nan, np.float32)
    report = fp.analysis.verify(safetensors(tmp_path / "m.safetensors", arrays))
    assert report.problems == [
        "l.0.weight: 4 of its 4 scales in weight_scale are NaN, the first at index 0; scales must be positive. "
        "The same holds for 2 further weights."
    ]
    assert len(report.to_frame()) == 4
    assert "l.0.weight" in report._repr_html_()
    report.save(tmp_path / "r.json")
    assert LayoutReport.load(tmp_path / "r.json") == report
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not a report that LayoutReport\.save wrote"):
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
    assert "a.weight: it holds float8_e4m3fn codes" in fp.analysis.verify(tmp_path).problems[0]


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
        "b.weight: the checkpoint holds b.weight_scale without its codes, b.weight or b.weight_packed."
    ]  # fmt: skip


def test_codes_that_became_floats_without_their_scales_are_found(tmp_path: Path) -> None:
    """As after readers that drop scales (unsloth 6200), or write what they refuse (imp 1450)."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((256, 256)).astype(np.float32)
    fp.torch.export({"up.weight": weight}, layout="deepseek_fp8", out=tmp_path)  # for its configuration
    encoded = fp.encode_scaled(weight, "e4m3", "BLOCK_128X128")
    codes = encoded.codes.view(ml_dtypes.float8_e4m3fn)
    arrays = {"up.weight": codes, "up.weight_scale_inv": encoded.scales}
    raw = arrays["up.weight"].astype(ml_dtypes.bfloat16)
    plain = rng.standard_normal((64, 64)).astype(np.float32)
    safetensors(tmp_path / "model.safetensors", {**arrays, "down.weight": raw, "out.weight": plain})
    unscaled = "down.weight: its bfloat16 values are values of E4M3, such as 416: codes were converted unscaled."
    assert fp.analysis.verify(tmp_path).problems == [unscaled]
    scales = {"down.weight_scale_inv": arrays["up.weight_scale_inv"]}
    safetensors(tmp_path / "model.safetensors", {**arrays, "down.weight": plain, **scales})
    assert fp.analysis.verify(tmp_path).problems == [
        "down.weight: down.weight_scale_inv is stored, and the weight is float32, which has no scales."
    ]


def test_configurations_that_disagree_are_a_problem(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((32, 128))
    fp.torch.export({"up.weight": weight}, layout="gptq", out=tmp_path / "x")
    assert fp.analysis.verify(tmp_path / "x").ok
    file = tmp_path / "x" / "quantize_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "bits": 8, "sym": False}))
    assert fp.analysis.verify(tmp_path / "x").problems == [
        "config.json says bits 4, and quantize_config.json says 8.",
        "config.json says sym True, and quantize_config.json says False.",
    ]


def test_unusual_numbers_beside_codes_are_read_or_reported(tmp_path: Path) -> None:
    weight = np.linspace(-1, 1, 128 * 256, dtype=np.float32).reshape(128, 256)

    def changed(layout: str, name: str, change: Any, **settings: Any) -> Path:
        folder = tmp_path / f"{layout}{len(list(tmp_path.iterdir()))}".replace(":", "-")
        fp.torch.export({"up.weight": weight}, layout=layout, out=folder)
        [file] = folder.glob("*.safetensors")
        arrays = {one.name: np.concatenate([*one.chunks()]).reshape(one.shape) for one in read_stored(file)[0]}
        arrays[name] = change(arrays[name])
        safetensors(file, arrays, safetensors_metadata(file))
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] |= settings
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    scale, same = "up.weight_scale_inv", lambda array: array
    plain = fp.analysis.open(changed("deepseek_fp8", scale, same))["up.weight"]
    wide = changed("deepseek_fp8", scale, lambda array: array.astype(np.float64))  # float32 does not hold all of FP64
    np.testing.assert_array_equal(fp.analysis.open(wide)["up.weight"], plain)
    assert fp.analysis.verify(wide).layout == "deepseek_fp8"
    tensor, scheme = "compressed-tensors:fp8_tensor", {"weights": {"strategy": "group", "group_size": 128}}
    alone = changed(tensor, "up.weight_scale", lambda array: array.reshape(()), config_groups={"group_0": scheme})
    assert any("makes 2 groups of 256 inputs" in text for text in fp.analysis.verify(alone).problems)
    endless = changed("deepseek_fp8", scale, same, weight_block_size=[2**70, 2**70])
    np.testing.assert_array_equal(fp.analysis.open(endless)["up.weight"], plain)
    long = changed("gptq", "up.g_idx", lambda array: array * 0, group_size=2**70)
    assert any("group size" in one.kind for one in fp.analysis.verify(long).findings)
    many = changed("hqq:int4", "up.group_size", lambda array: np.full((4, 1), 64, np.int32))
    problems = fp.analysis.verify(many).problems
    assert problems == ["up.weight: its stored group_size has the shape (4, 1); readers need one value."]
    row = changed("bitsandbytes:nf4", "up.weight.quant_map", lambda array: array.reshape(1, 16))
    assert fp.analysis.verify(row).ok
    assert np.max(np.abs(fp.analysis.open(row)["up.weight"] - weight)) < 0.16
    state = "up.weight.quant_state.bitsandbytes__nf4"
    for field in ({"blocksize": 2**70}, {"nested_blocksize": 2**70}, {"nested_offset": 10**400}):

        def write(text: Any, field: Any = field) -> Any:
            return np.frombuffer(json.dumps({**json.loads(text.tobytes()), **field}).encode(), np.uint8)

        assert "is not JSON with shape and blocksize" in fp.analysis.verify(
            changed("bitsandbytes:nf4_double", state, write)
        ).problems[0]  # fmt: skip


def test_good_files_of_large_weights_few_rows_and_zeros_have_no_problem(tmp_path: Path) -> None:
    normal = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    cases: dict[str, Any] = {
        "bitsandbytes:int8": (16 * normal, {}),  # a row's largest magnitude is stored, not its 127th part
        "torchao:nvfp4_swizzled": (normal[:32, :32], {}),  # rows and tiles of scales have equally many rows in the file
        "gptq": (normal * 0, {"bits": 8, "symmetric": False}),
        "gptq_v2": (normal * 0, {"bits": 8, "symmetric": False}),
    }
    for layout, (weight, options) in cases.items():
        folder = tmp_path / layout.replace(":", "-")
        fp.torch.export({"up.weight": weight}, layout=layout, out=folder, **options)
        assert fp.analysis.verify(folder).problems == [], layout


def test_unexpected_tensors_and_metadata_are_no_crash(tmp_path: Path) -> None:
    scales = {"a._weight_qdata": np.ones((4, 64), np.int8), "a._weight_scale": np.ones((4, 1), np.float32)}
    metadata = {"a.weight": json.dumps({"_data": {"block_size": [1, 64]}, "_tensor_data_names": [1]})}
    [problem] = fp.analysis.verify(safetensors(tmp_path / "ao.safetensors", scales, metadata)).problems
    assert "the metadata name 1, which the file does not hold" in problem
    weight = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32)
    for layout, more in (("awq", {"a.g_idx": np.full(128, -1, np.int32)}),
                         ("bitsandbytes:nf4", {"a.weight.nested_quant_map": np.ones(10, np.float32)})):  # fmt: skip
        folder = tmp_path / layout.partition(":")[0]
        fp.torch.export({"a.weight": weight}, layout=layout, out=folder)
        file = folder / "model.safetensors"
        arrays = {one.name: np.concatenate([*one.chunks()]).reshape(one.shape) for one in read_stored(file)[0]}
        safetensors(file, {**arrays, **more})
        assert fp.analysis.verify(folder).ok


def test_zero_points_of_packed_rows_are_those_of_the_groups_of_g_idx(tmp_path: Path) -> None:
    rng, (n, k), zeros = np.random.default_rng(1), (128, 96), np.array([2, 2, 11])
    group_of = rng.permutation(np.arange(k) % 3)
    codes = np.clip(np.rint(zeros[group_of] + rng.normal(0, 2, (n, k))), 0, 15).astype(np.uint8)
    arrays = {
        "a.weight_packed": words_of(codes, 4), "a.weight_scale": np.ones((n, 3), np.float32),
        "a.weight_zero_point": np.ascontiguousarray(words_of(np.tile(zeros[:, None], n), 4).T),
        "a.weight_shape": np.array([n, k]), "a.weight_g_idx": group_of.astype(np.int32),
    }  # fmt: skip
    assert fp.analysis.verify(safetensors(tmp_path / "a.safetensors", arrays)).problems == []


def test_a_relative_path_keeps_its_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    monkeypatch.chdir(tmp_path / "inner")
    assert fp.analysis.verify("../bad.npz").problems[0].startswith("../bad.npz: damaged")


def test_equal_zero_points_of_asymmetric_gptq_are_read_in_the_configured_version(tmp_path: Path) -> None:
    zeros = np.zeros((16, 64), np.float32)  # whose range, -1 to 1 in float32, has the zero point 127 and not 128
    for layout in ("gptq", "gptq_v2"):
        folder = tmp_path / layout
        fp.torch.export(
            {"a.weight": zeros}, layout=layout, out=folder, bits=8, symmetric=False, group_size=32, keep=()
        )  # fmt: skip
        checkpoint = fp.analysis.open(folder)
        assert checkpoint.layout == layout
        assert not checkpoint["a.weight"].any()


def test_scales_near_the_largest_float32_are_no_overflow(tmp_path: Path) -> None:
    arrays = {"a.weight": np.ones((4, 8), np.int8), "a.SCB": np.full(4, 3e38, np.float32)}
    with np.errstate(all="raise"):
        [problem] = fp.analysis.verify(safetensors(tmp_path / "a.safetensors", arrays)).problems
    assert "the scales look inverted" in problem


@pytest.mark.parametrize("layout", ["gptq_v2", "awq", "compressed-tensors:int4_asym", "hqq:int4", "hqq:int8"])
def test_weights_that_are_sparse_or_have_one_sign_have_no_wrong_zero_points(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 256)).astype(np.float32)
    cases = {
        "sparse": np.where(rng.random(weight.shape) < 0.9, np.float32(0), weight),
        "one sign": np.abs(weight) * rng.choice(np.array([-1, 1], np.float32), (64, 1)),
    }
    if layout.endswith("8"):
        cases["a mean"] = weight + np.float32(0.3)  # the codes of a group spread over 40 codes
    options: Any = {"symmetric": False} if layout == "gptq_v2" else {}
    for name, changed in cases.items():
        folder = tmp_path / name
        fp.torch.export({"up.weight": changed}, layout=layout, out=folder, group_size=16, **options)
        assert fp.analysis.verify(folder).problems == [], name


@pytest.mark.parametrize("bits", [1, 2])
def test_errors_of_1_and_2_bits_are_no_fault(bits: int, tmp_path: Path) -> None:
    weight = {"a.weight": np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)}
    report = fp.torch.export(weight, layout=f"hqq:int{bits}", out=tmp_path, group_size=256)
    assert report.weights[0].relative_error > 0.5
    assert fp.analysis.verify(tmp_path, reference=weight).problems == []
    other = {"a.weight": weight["a.weight"] / 9}
    assert any("its relative error against the reference is" in text
               for text in fp.analysis.verify(tmp_path, reference=other).problems)  # fmt: skip
