"""Quantised checkpoints that the libraries themselves wrote are read with the bits that the libraries read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.files import SAFETENSORS_CODES, SAFETENSORS_DTYPES, read_file
from fpsim.analysis.tensors.layouts.float_blocks import blocks_of
from fpsim.analysis.tensors.layouts.gguf_blocks import KINDS
from fpsim.analysis.tensors.layouts.gguf_large_blocks import LARGE_KINDS
from fpsim.analysis.tensors.layouts.parts import LayoutError
from fpsim.analysis.tensors.layouts.unpacking import fields
from fpsim.analysis.tensors.opening import from_mapping, open_tensors
from fpsim.analysis.tensors.tensor import Tensor
from tests.kit.published import DATA

ROWS: dict[str, Any] = json.loads((DATA / "layouts.json").read_text())
WEIGHT = "model.layers.0.mlp.up_proj.weight"


def file_of(layout: str, folder: Path) -> Path:
    """Return a file of a library's, written anew."""
    with np.load(DATA / "layouts.npz") as files:
        path = folder / str(ROWS[layout]["file"])
        path.write_bytes(files[layout].tobytes())
    return path


def values(one: Tensor, size: int = 1000) -> np.ndarray[Any, Any]:
    return np.concatenate(list(one.chunks(size))).reshape(one.shape)


def digest(array: np.ndarray[Any, Any]) -> str:
    """Return the digest of float32 values, every NaN the same; -0 differs from 0."""
    plain = np.where(np.isnan(array), np.float32(np.nan), array)
    return hashlib.sha256(np.ascontiguousarray(plain, "<f4").tobytes()).hexdigest()


@pytest.mark.parametrize("layout", ROWS)
def test_weights_have_the_bits_of_the_library(layout: str, tmp_path: Path) -> None:
    path = file_of(layout, tmp_path)
    for dtype in ("float32", "bfloat16", "float16"):
        checkpoint = fp.analysis.open(path, dtype)
        for name, row in ROWS[layout]["values"].items():
            if dtype in row["digests"]:
                array = checkpoint[name]
                assert array.dtype == np.float32
                assert array.shape == tuple(row["shape"])
                assert digest(array) == row["digests"][dtype], (name, dtype)


@pytest.mark.parametrize("layout", ROWS)
def test_chunks_of_any_size_are_the_same_values(layout: str, tmp_path: Path) -> None:
    tensors = {one.name: one for one in read_file(file_of(layout, tmp_path))[0]}
    for name in ROWS[layout]["values"]:
        assert digest(np.concatenate(list(tensors[name].chunks(77)))) == digest(values(tensors[name]))


def test_blocks_of_gguf_are_read_as_the_gguf_package_reads_them() -> None:
    """Any bytes, Inf and NaN as steps too."""
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(0)
    for number, kind in (KINDS | LARGE_KINDS).items():
        blocks = rng.integers(0, 256, (2000, kind.bytes), np.uint8)
        with np.errstate(all="ignore"):
            wanted = gguf.quants.dequantize(blocks.reshape(1, -1), gguf.GGMLQuantizationType(number))
            assert gguf.GGML_QUANT_SIZES[number] == (kind.elements, kind.bytes)
            assert digest(kind.decode(blocks).reshape(1, -1)) == digest(wanted), kind.name


BITS = {
    "fp8_block_deepseek_v3": 8 + 32 / 128**2, "ct_fp8_channel": 8 + 32 / 256, "ct_nvfp4": 4.5 + 32 / 64 / 256,
    "modelopt_nvfp4": 4.5 + 32 / 64 / 256, "ct_mxfp4": 4.25, "modelopt_mxfp8": 8.25, "mxfp4_gpt_oss": 4.25,
    "gptq_v2_asym": 4 + 16 / 64 + 4 / 64 + 32 / 64, "awq_gemm": 4 + 16 / 64 + 4 / 64,
    "ct_int4_pack_asym": 4 + 32 / 32 + 4 / 32 + 128 / 64 / 256, "ct_int8_w8a8": 8 + 32 / 256,
    "bnb_nf4": 4 + 32 / 64 + (16 * 32 + 78 * 8) / 64 / 256, "bnb_int8": 8 + 32 / 256 + 8 / 64 / 256,
}  # fmt: skip


@pytest.mark.parametrize("layout", BITS)
def test_stored_bits_count_scales(layout: str, tmp_path: Path) -> None:
    names = (WEIGHT, "model.layers.0.mlp.experts.gate_up_proj")
    [one] = [one for one in read_file(file_of(layout, tmp_path))[0] if one.name in names]
    assert one.stored_bits == BITS[layout]


def test_stored_bits_of_gguf_count_scales(tmp_path: Path) -> None:
    bits = {one.dtype: one.stored_bits for one in read_file(file_of("gguf", tmp_path))[0]}
    assert bits == {
        "q4_0": 4.5, "q4_1": 5, "q5_0": 5.5, "q5_1": 6, "q8_0": 8.5, "q2_k": 2.625, "q3_k": 3.4375, "q4_k": 4.5,
        "q5_k": 5.5, "q6_k": 6.5625, "iq4_nl": 4.5, "iq4_xs": 4.25, "mxfp4": 4.25, "nvfp4": 4.5, "float32": 32,
    }  # fmt: skip


MORE_BITS = ("gguf", "hqq_int8_plain")  # several types; 9 bits for a value, more than other 8-bit formats take


@pytest.mark.parametrize("layout", [name for name in ROWS if name not in MORE_BITS])
def test_a_quantised_weight_stays_as_it_is(layout: str, tmp_path: Path) -> None:
    """An expert does not quantise again what is stored in as few bits; a scale is no bias and no norm."""
    report = fp.analysis.study(file_of(layout, tmp_path))
    assert report.recommended_bytes == report.stored_bytes
    of_weight = [row for row in report.recommendations if row.role == "matrix"]
    assert [row.met for row in of_weight] == [False]
    assert of_weight[0].reason.startswith("It is stored in ")
    roles = {row.tensor.rpartition(".")[2]: row.role for row in report.recommendations if "scale" in row.tensor}
    assert set(roles.values()) <= {"statistics", "scalar"}
    assert not report.notes
    assert "inf dB" not in "".join(row.reason for row in report.recommendations)


def safetensors(path: Path, arrays: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    """Write a .safetensors file."""
    words = {np.dtype(kind): word for word, kind in {**SAFETENSORS_DTYPES, **SAFETENSORS_CODES}.items()}
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, array in arrays.items():
        begin = len(data)
        data += array.tobytes()
        header[name] = {"dtype": words[array.dtype], "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


CODES = np.arange(64, dtype=np.uint8).reshape(8, 8)  # E4M3 codes of 0 to 7.5
SCALES = np.array([[2]], np.float32)


def test_scales_in_another_shard_join_their_codes(tmp_path: Path) -> None:
    safetensors(tmp_path / "a.safetensors", {"l.0.weight": CODES.view(ml_dtypes.float8_e4m3fn)})
    safetensors(tmp_path / "b.safetensors", {"l.0.weight_scale_inv": SCALES})
    tensors = open_tensors([tmp_path])
    assert [one.name for one in tensors.tensors] == ["l.0.weight"]
    assert (tensors.notes, tensors.problems) == ((), ())
    assert np.array_equal(values(tensors.tensors[0]), 2 * fp.decode(CODES, "e4m3"))


def test_files_of_one_name_keep_their_own_scales(tmp_path: Path) -> None:
    for i, name in enumerate("ab"):
        arrays = {"w.weight": CODES.view(ml_dtypes.float8_e4m3fn), "w.weight_scale": np.array([i + 1], np.float32)}
        safetensors(tmp_path / f"{name}.safetensors", arrays)
    tensors = open_tensors([tmp_path]).tensors
    assert [one.name for one in tensors] == ["a:w.weight", "b:w.weight"]
    assert np.array_equal(2 * values(tensors[0]), values(tensors[1]))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_state_dicts_are_joined(library: str) -> None:
    codes: Any = CODES.view(ml_dtypes.float8_e4m3fn)
    scales: Any = np.array([[2], [1], [1], [1], [1], [1], [1], [4]], np.float32)
    if library == "torch":
        torch = pytest.importorskip("torch")
        codes, scales = torch.from_numpy(CODES.copy()).view(torch.float8_e4m3fn), torch.from_numpy(scales)
    [one] = from_mapping({"q.weight": codes, "q.weight_scale": scales})[0]
    assert (one.dtype, one.stored_bits) == ("E4M3 with row scales", 8 + 32 / 8)
    wanted = fp.decode(CODES, "e4m3")
    wanted[0], wanted[-1] = 2 * wanted[0], 4 * wanted[-1]
    assert np.array_equal(values(one), wanted)


def test_torch_files_are_joined(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {
        "q.weight": torch.arange(-32, 32, dtype=torch.int8).reshape(8, 8),
        "q.weight_scale": torch.full((8, 1), 0.5),
    }
    torch.save(state, tmp_path / "m.pt")
    [one] = read_file(tmp_path / "m.pt")[0]
    assert one.dtype == "INT8 with row scales"
    assert np.array_equal(values(one), np.arange(-32, 32, dtype=np.float32).reshape(8, 8) / 2)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_configuration_says_the_version_of_gptq(version: str, tmp_path: Path) -> None:
    """Groups of one sign, whose zero points lie at an end, tell nothing."""
    words = np.full((4, 8), 0x76543210, np.int32)
    arrays = {
        "w.qweight": words,
        "w.qzeros": np.full((1, 1), 0x33333333, np.int32),
        "w.scales": np.ones((1, 8), np.float16),
    }
    path = safetensors(tmp_path / "m.safetensors", arrays)
    word = "gptq_v2" if version == "v2" else "gptq"
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "gptq", "bits": 4,
        "checkpoint_format": word}}))  # fmt: skip
    [one] = read_file(path)[0]
    assert one.dtype == f"INT4 with row scales (GPTQ {version})"
    assert values(one)[:8, 0].tolist() == [i - (3 if version == "v2" else 4) for i in range(8)]


def test_ragged_blocks_and_experts() -> None:
    assert blocks_of((576, 7168), (5, 56))[:2] == (128, 128)
    assert blocks_of((8, 256, 128), (8, 2, 1))[:2] == (128, 128)
    assert blocks_of((8, 256, 128), (8, 1, 1))[:2] == (256, 128)
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(0, 126, (3, 256, 160), np.uint8), rng.random((3, 2, 2), np.float32)
    arrays = {"experts.up": codes.view(ml_dtypes.float8_e4m3fn), "experts.up_scale_inv": scales}
    [one] = from_mapping(arrays)[0]
    wide = np.repeat(np.repeat(scales, 128, 1), 128, 2)[:, :, :160]
    assert np.array_equal(values(one), fp.decode(codes, "e4m3") * wide)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"w.weight_scale": np.ones((3, 5), np.float32)}, "its scales of shape (3, 5) do not fit blocks"),
        ({"w.weight_scale": np.ones((8, 8, 8), np.float32)}, "do not fit blocks of its shape (8, 8)"),
    ],
)
def test_scales_that_fit_nothing_leave_the_codes_out(more: dict[str, Any], said: str) -> None:
    """Codes without their scales would be judged as values."""
    arrays = {"w.weight": CODES.view(ml_dtypes.float8_e4m3fn), "norm.weight": np.ones(8, np.float32), **more}
    tensors, notes = from_mapping(arrays)
    assert [one.name for one in tensors] == ["norm.weight"]
    assert len(notes) == 1
    assert said in notes[0]
    with pytest.raises(LayoutError):
        blocks_of((8, 8), next(iter(more.values())).shape)


def test_packed_words_that_fit_nothing_are_left_out() -> None:
    words, zeros, scales = np.zeros((4, 8), np.int32), np.zeros((1, 1), np.int32), np.ones((1, 8), np.float16)
    arrays = {
        "a.qweight": words, "a.qzeros": np.zeros((3, 1), np.int32), "a.scales": np.ones((2, 8), np.float16),
        "b.qweight": words, "b.qzeros": zeros, "b.scales": scales, "b.g_idx": np.full(32, 7, np.int32),
        "norm": np.ones(4, np.float32),
    }  # fmt: skip
    tensors, notes = from_mapping(arrays)
    assert [one.name for one in tensors] == ["norm"]
    assert [note.partition(" left out")[0] for note in notes] == ["a.qweight", "b.qweight"]
    assert "names groups from 7 to 7; it has 1" in notes[1]


@pytest.mark.parametrize("bits", range(1, 9))
def test_fields_of_any_width_cross_words(bits: int) -> None:
    rng = np.random.default_rng(bits)
    wanted = rng.integers(0, 1 << bits, (5, 100))
    packed = [sum(int(code) << (bits * i) for i, code in enumerate(row)) for row in wanted]
    words = np.array([[row >> (32 * i) & 0xFFFFFFFF for i in range(-(-100 * bits // 32))] for row in packed], np.uint32)
    assert np.array_equal(fields(words, bits, 100), wanted)


@pytest.mark.parametrize("end", ["weight_scale_inv", "scale"])
def test_pairs_of_e2m1_beside_fp8_are_not_read_as_int8(end: str, tmp_path: Path) -> None:
    """As experts of later DeepSeek checkpoints, whose other layers are FP8."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (3, 64), dtype=np.uint8)
    exponents = rng.integers(100, 130, (3, 2), dtype=np.uint8)
    one_byte = rng.integers(-100, 100, (3, 64), dtype=np.int8)
    power = ml_dtypes.float8_e8m0fnu
    arrays = {
        "expert.weight": (codes[:, ::2] | codes[:, 1::2] << 4).view(np.int8), f"expert.{end}": exponents.view(power),
        "other.weight": one_byte, f"other.{end}": exponents[:, :1].view(power),
    }  # fmt: skip
    safetensors(tmp_path / "model.safetensors", arrays)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    checkpoint = fp.analysis.open(tmp_path)
    scales = np.exp2(exponents.astype(np.float64) - 127)
    wanted = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64) * np.repeat(scales, 32, axis=1)
    assert (checkpoint["expert.weight"] == wanted).all()
    assert checkpoint.layouts["expert.weight"] == "deepseek_fp4"
    assert (checkpoint["other.weight"] == one_byte * scales[:, :1]).all()  # a scale for each row of bytes
    problems = fp.analysis.verify(tmp_path).problems
    assert [problem.partition(":")[0] for problem in problems] == ["other.weight"]


def test_codes_without_axes_and_integers_of_another_byte_order_are_left_out() -> None:
    norm = {"norm": np.ones(4, np.float32)}
    for codes, scale in (([1, 2], 127), (1, [127]), (1, 127)):
        kept, notes = from_mapping({"a.weight": np.uint8(codes), "a.weight_scale": np.uint8(scale), **norm})  # type: ignore[arg-type]
        assert [one.name for one in kept] == ["norm"]
        assert f"and the shape {np.shape(codes)}; wanted a matrix" in notes[0]
    power = np.full((), 127, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    arrays = {"a.weight": np.array([[2, 4]], np.int8), "a.scale": power, **norm}  # one scale is no E2M1 block
    [one, _], _ = from_mapping(arrays)
    assert [piece.tolist() for piece in one.chunks()] == [[2, 4]]
    kept, notes = from_mapping({"steps": np.ones(3, ">i4"), **norm})
    assert ([one.name for one in kept], notes) == (["norm"], ("steps left out, it holds int32 and not floats",))
