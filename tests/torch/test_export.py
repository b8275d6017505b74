"""`fp.torch.export`: the bytes of the libraries, values that read back, losses, and whole files or none."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.files import read_stored
from fpsim.analysis.tensors.writing.catalogue import LAYOUTS_WRITTEN
from fpsim.analysis.tensors.writing.gguf_blocks import BYTES
from fpsim.analysis.tensors.writing.means import torch_mean
from fpsim.analysis.tensors.writing.report import ExportReport
from fpsim.testing import assert_bits_equal
from tests.analysis.tensors.test_layouts import ROWS, WEIGHT, digest, file_of
from tests.kit.published import DATA
from tests.torch.export_cases import Tiny

torch = pytest.importorskip("torch")


Array = np.ndarray[Any, Any]


EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


BF16, F32 = ml_dtypes.bfloat16, np.float32


# Recorded file -> the layout to write, the weights that the library had, their dtype, options.
WRITTEN: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "fp8_block_deepseek_v3": ("deepseek_fp8", "source_block", F32, {}),
    "fp8_block_ue8m0": ("deepseek_fp8:ue8m0", "source_block", F32, {}),
    "ct_fp8_tensor": ("compressed-tensors:fp8_tensor", "source", F32, {}),
    "ct_fp8_channel": ("compressed-tensors:fp8_channel", "source", F32, {}),
    "ct_fp8_channel_bf16scale": ("compressed-tensors:fp8_channel", "source", BF16, {}),
    "ct_fp8_block": ("compressed-tensors:fp8_block", "source_ragged", F32, {}),
    "ct_int8_w8a8": ("compressed-tensors:int8", "source", F32, {}),
    "ct_int4_pack_sym": ("compressed-tensors:int4", "source", BF16, {}),
    "ct_int4_pack_asym": ("compressed-tensors:int4_asym", "source", F32, {"group_size": 32}),
    "ct_nvfp4": ("compressed-tensors:nvfp4", "source", BF16, {}),
    "ct_mxfp4": ("compressed-tensors:mxfp4", "source", BF16, {}),
    "ct_mxfp8": ("compressed-tensors:mxfp8", "source", BF16, {}),
    "modelopt_nvfp4": ("modelopt:nvfp4", "source", BF16, {}),
    "modelopt_fp8": ("modelopt:fp8", "source", BF16, {}),
    "modelopt_mxfp8": ("modelopt:mxfp8", "source", BF16, {}),
    "modelopt_fp8_channel": ("modelopt:fp8_channel", "source", BF16, {}),
    "gptq_v1_asym": ("gptq", "source", F32, {"group_size": 64, "symmetric": False}),
    "gptq_v2_asym": ("gptq_v2", "source", F32, {"group_size": 64, "symmetric": False}),
    "gptq_v1_sym": ("gptq", "source", F32, {"group_size": 64}),
    "gptq_v1_int8": ("gptq", "source", F32, {"group_size": 64, "bits": 8}),
    "awq_gemm": ("awq", "source", F32, {"group_size": 64}),
    "mxfp4_gpt_oss": ("mxfp4", "experts", BF16, {}),
    "torchao_mxfp8": ("torchao:mxfp8", "source", BF16, {}),
    "torchao_mxfp4": ("torchao:mxfp4", "source", BF16, {}),
    "torchao_nvfp4": ("torchao:nvfp4", "source", BF16, {}),
    "torchao_mxfp8_swizzled": ("torchao:mxfp8_swizzled", "source", BF16, {}),
    "torchao_nvfp4_swizzled": ("torchao:nvfp4_swizzled", "source", BF16, {}),
    "bnb_nf4": ("bitsandbytes:nf4", "source", F32, {}),
    "bnb_nf4_double": ("bitsandbytes:nf4_double", "source", BF16, {}),
    "bnb_int8": ("bitsandbytes:int8", "source", F32, {}),
    "hqq_int8_plain": ("hqq:int8", "source", F32, {}),
    "hqq_int4_plain": ("hqq:int4", "source", BF16, {}),
    "hqq_int2_plain": ("hqq:int2", "source", F32, {}),
    "hqq_int1_plain": ("hqq:int1", "source", BF16, {}),
}


ALL_POSITIVE = 40  # the row of which gptqmodel halves the scale where codes are symmetric


MEASURED = {"input_scale", "input_global_scale"}  # what layers' inputs decide


def source(name: str, dtype: Any = F32) -> Array:
    """Return recorded weights before quantisation."""
    with np.load(DATA / "layouts.npz") as files:
        if name == "experts":
            both = [(files[f"source_expert{i}"].astype(np.uint32) << 16).view(np.float32) for i in (0, 1)]
            return np.ascontiguousarray(np.stack(both).swapaxes(-1, -2)).astype(dtype)
        return np.asarray((files[name].astype(np.uint32) << 16).view(np.float32).astype(dtype))


def stored(path: Path) -> dict[str, Array]:
    """Return the tensors of a file as they are stored."""
    return {one.name: np.concatenate([*one.chunks()]).reshape(one.shape) for one in read_stored(path)[0]}


@pytest.mark.parametrize("recorded", WRITTEN)
def test_the_bytes_are_those_of_the_library(recorded: str, tmp_path: Path) -> None:
    layout, weights, dtype, options = WRITTEN[recorded]
    name = EXPERTS if weights == "experts" else WEIGHT
    report = fp.torch.export({name: source(weights, dtype)}, layout=layout, out=tmp_path / "out", **options)
    wanted, got = stored(file_of(recorded, tmp_path)), stored(tmp_path / "out" / "model.safetensors")
    left = {end for end in wanted if end.rpartition(".")[2] in MEASURED or end.endswith("_bias")}
    assert set(got) == set(wanted) - left
    for end, array in got.items():
        assert (array.dtype, array.shape) == (wanted[end].dtype, wanted[end].shape), end
        same = array.reshape(array.shape or (1,)).view(np.uint8) == wanted[end].reshape(array.shape or (1,)).view(
            np.uint8
        )
        if recorded in ("gptq_v1_sym", "gptq_v1_int8") and end.rpartition(".")[2] in ("qweight", "scales"):
            outputs = same.reshape(*array.shape, -1).all(axis=(0, 2))
            assert np.flatnonzero(~outputs).tolist() == [ALL_POSITIVE]
        else:
            assert same.all(), end
    [row] = report.weights
    assert row.tensor == name


@pytest.mark.parametrize("recorded", [name for name in WRITTEN if name not in ("gptq_v1_sym", "gptq_v1_int8")])
def test_what_reads_back_is_what_the_library_reads(recorded: str, tmp_path: Path) -> None:
    layout, weights, dtype, options = WRITTEN[recorded]
    name = EXPERTS if weights == "experts" else WEIGHT
    fp.torch.export({name: source(weights, dtype)}, layout=layout, out=tmp_path / "out", **options)
    for kind, wanted in ROWS[recorded]["values"][name]["digests"].items():
        assert digest(fp.analysis.open(tmp_path / "out", kind)[name]) == wanted


@pytest.mark.parametrize(("kind", "block"), [("Q4_0", 0), ("Q4_1", 1), ("Q5_0", 2), ("Q5_1", 3), ("Q8_0", 4)])
def test_the_bytes_of_gguf_are_those_of_ggml(kind: str, block: int, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    norm = source("source")[0].astype(BF16)
    tensors = {
        "blk.0.ffn_up.weight": source("source_gguf"),
        "blk.0.norm.weight": norm,
        "n": np.arange(3, dtype=np.int32),
    }
    path = tmp_path / "m.gguf"
    report = fp.torch.export(tensors, layout=f"gguf:{kind}", out=path)
    got = {one.name: one for one in gguf.GGUFReader(path).tensors}
    wanted = {one.name: one for one in gguf.GGUFReader(file_of("gguf", tmp_path)).tensors}
    assert np.array_equal(got["blk.0.ffn_up.weight"].data, wanted[f"blk.{block}.ffn_up.weight"].data)
    assert got["blk.0.norm.weight"].data.tolist() == norm.astype(np.float32).tolist()
    assert got["n"].data.tolist() == [0, 1, 2]
    values = fp.analysis.open(path)
    assert (values.layout, report.files) == (f"gguf:{kind}", ("m.gguf",))
    assert digest(values["blk.0.ffn_up.weight"]) == next(
        iter(ROWS["gguf"]["values"][f"blk.{block}.ffn_up.weight"]["digests"].values())
    )


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS_WRITTEN if layout.startswith("torchao:")])
def test_torchao_reads_what_we_read(layout: str, tmp_path: Path) -> None:
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    opened = pytest.importorskip("safetensors").safe_open
    tensors = {WEIGHT: source("source", BF16), "norm.weight": np.ones(4, np.float32)}
    fp.torch.export(tensors, layout=layout, out=tmp_path)
    with opened(tmp_path / "model.safetensors", "pt") as file:
        arrays = {str(key): file.get_tensor(key) for key in list(file.keys())}
        state, left = support.unflatten_tensor_state_dict(arrays, file.metadata())
    assert not left
    assert sorted(state) == [WEIGHT, "norm.weight"]
    read = state[WEIGHT].dequantize(torch.float32).numpy()
    assert_bits_equal(read, fp.analysis.open(tmp_path)[WEIGHT])


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_1"])
def test_a_zero_minimum_of_gguf_keeps_the_sign_of_the_first_zero(kind: str, tmp_path: Path) -> None:
    """As ggml's search for the smallest value does."""
    blocks = np.abs(np.random.default_rng(0).standard_normal((8, 32))).astype(F32)
    blocks[0, [3, 5]], blocks[1, [3, 5]], blocks[2] = [-0.0, 0.0], [0.0, -0.0], -0.0
    fp.torch.export({"w.weight": blocks}, layout=f"gguf:{kind}", out=tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()[-8 * BYTES[kind] :]
    minima = np.frombuffer(data, np.uint8).reshape(8, -1)[:, 2:4].copy().view("<f2")[:, 0]
    assert np.signbit(minima[:3]).tolist() == [True, False, True]
    assert np.array_equal(minima, blocks.min(1).astype(np.float16))


def test_codes_of_nf4_are_of_products_with_the_inverse_scale(tmp_path: Path) -> None:
    """bitsandbytes multiplies by 1 / absmax, which rounds to the other side of a middle than dividing does."""
    scale, x = F32(0.050973527), F32(-0.0070298472)
    middle = (F32(-0.18477343) + F32(-0.091050036)) / F32(2)
    assert (x * (F32(1) / scale) > middle) != (x / scale > middle)
    values = np.zeros((1, 64), F32)
    values[0, :2] = scale, x
    fp.torch.export({"w.weight": values}, layout="nf4", out=tmp_path)
    codes = stored(tmp_path / "model.safetensors")["w.weight"][0, 0]
    assert codes == 15 << 4 | (6 if x * (F32(1) / scale) > middle else 5)


def test_scales_of_scales_take_the_mean_in_torchs_order(tmp_path: Path) -> None:
    weight = np.random.default_rng(2).standard_normal((100, 1000)).astype(F32)
    fp.torch.export({"w.weight": weight}, layout="bitsandbytes:nf4_double", out=tmp_path)
    state = json.loads(stored(tmp_path / "model.safetensors")["w.weight.quant_state.bitsandbytes__nf4"].tobytes())
    largest = np.abs(np.pad(weight.reshape(-1), (0, 32)).reshape(-1, 64)).max(1)
    total = F32(fp.sum(largest, accumulate=fp.schedules.torch_sum()))
    exact = F32(sum(map(Fraction, largest.tolist())) / largest.size)
    assert state["nested_offset"] == total / F32(largest.size) != exact
    assert fp.analysis.verify(tmp_path).ok


@pytest.mark.parametrize("count", [1, 7, 8, 31, 32, 33, 511, 512, 513, 1000, 2111, 5000])
def test_the_mean_of_scales_has_the_order_of_torch_sum(count: int) -> None:
    rng = np.random.default_rng(count)
    x = (np.abs(rng.standard_normal(count)) * np.exp2(rng.integers(-12, 12, count))).astype(F32)
    assert torch_mean(x) == F32(fp.sum(x, accumulate=fp.schedules.torch_sum())) / F32(count)


@pytest.mark.skipif("AVX" not in torch.backends.cpu.get_cpu_capability(), reason="torch adds in another order")
def test_the_mean_of_scales_is_that_of_torch() -> None:
    x = np.abs(np.random.default_rng(0).standard_normal(32_768)).astype(F32)
    assert [float(torch_mean(x[:n])) for n in (4097, 20_000, 32_768)] == [
        torch.from_numpy(x[:n]).mean().item() for n in (4097, 20_000, 32_768)
    ]


TOKENS = torch.arange(16).reshape(2, 8)


QUANTISED = ["down.weight", "k_proj.weight", "q_proj.weight", "v_proj.weight"]


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [(layout, dtype) for layout in LAYOUTS_WRITTEN for dtype in ("float32", "bfloat16")]
    + [(layout, "float16") for layout in LAYOUTS_WRITTEN if layout.startswith("compressed-tensors")],
)
def test_every_layout_is_verified_reloads_and_keeps_the_rest(layout: str, dtype: str, tmp_path: Path) -> None:
    model = Tiny(getattr(torch, dtype))
    before = {name: x.clone() for name, x in model.state_dict().items()}
    report = fp.torch.export(model, layout=layout, out=tmp_path, batch=TOKENS)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert model.training
    verdict = fp.analysis.verify(tmp_path)
    assert verdict.ok, verdict.problems
    assert (verdict.layout, verdict.weights) == (layout, 4)
    values = fp.analysis.open(tmp_path)
    assert sorted(row.tensor for row in report.weights) == QUANTISED
    for row in report.weights:
        wanted, got = before[row.tensor].float().numpy(), values[row.tensor]
        difference = got.astype(np.float64) - wanted
        assert row.relative_error == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(wanted), rel=1e-5)
        assert row.max_error == np.max(np.abs(got - wanted))
        assert row.sqnr_db > {"hqq:int2": 5, "hqq:int1": 0}.get(layout, 16)
    plain = {one.name: one for one in read_stored(next(tmp_path.glob("model.*")))[0]}
    for name in ("embed.weight", "norm.bias", "lm_head.weight", "down.bias", "steps"):
        assert name in report.kept
        if name in plain:  # GGUF's reader leaves integers out
            array = np.concatenate([*plain[name].chunks()]).astype(np.float32).reshape(plain[name].shape)
            assert_bits_equal(array, before[name].float().numpy())
    assert report.output_error is not None
    assert 0 < report.output_error < (2 if layout in ("hqq:int1", "hqq:int2") else 0.5)
    with torch.no_grad():
        model.eval()
        first = model(TOKENS).double()
        for name in QUANTISED:
            module = model.get_submodule(name.removesuffix(".weight"))
            module.weight.data = torch.from_numpy(values[name]).to(module.weight)
        second = model(TOKENS).double()
    assert report.output_error == pytest.approx(float((second - first).norm() / first.norm()), rel=1e-9)
    divergence = torch.nn.functional.kl_div(
        second.log_softmax(-1), first.log_softmax(-1), log_target=True, reduction="none"
    )
    assert report.output_kl == pytest.approx(float(divergence.sum(-1).mean()), rel=1e-6)
    assert f"{report.output_error:.2g}, their KL divergence {report.output_kl:.2g} nats." in str(report)
    single = dataclasses.replace(report, output_kl=None)  # of a model whose outputs have no axis longer than 1
    assert f"The relative change of the outputs is {report.output_error:.2g}.\n" in f"{single}\n"
    assert ExportReport.load(tmp_path / "fpsim_export.json") == report


def scheme(config: dict[str, Any]) -> dict[str, Any]:
    return dict(config["config_groups"]["group_0"]["weights"])


@pytest.mark.parametrize("recorded", WRITTEN)
def test_the_configuration_says_what_the_library_says(recorded: str, tmp_path: Path) -> None:
    layout, weights, dtype, options = WRITTEN[recorded]
    name = EXPERTS if weights == "experts" else WEIGHT
    fp.torch.export({name: source(weights, dtype)}, layout=layout, out=tmp_path, config={"a": 1}, **options)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["a"] == 1
    got, wanted = config["quantization_config"], ROWS[recorded]["config"]
    names = (
        "quant_method", "format", "quant_algo", "bits", "group_size", "sym", "desc_act", "checkpoint_format", "version",
        "zero_point", "weight_block_size", "fmt", "scale_fmt", "load_in_4bit", "bnb_4bit_quant_type", "quant_config",
        "load_in_8bit", "bnb_4bit_use_double_quant", "llm_int8_threshold",
    )  # fmt: skip
    assert {key: got.get(key) for key in names} == {key: wanted.get(key) for key in names}
    if "config_groups" in wanted:
        assert scheme(got) == scheme(wanted)
    if "hf_quant_config" in wanted:
        file = json.loads((tmp_path / "hf_quant_config.json").read_text())
        kinds = ("quant_algo", "group_size", "kv_cache_quant_algo")
        ours, theirs = file["quantization"], wanted["hf_quant_config"]["quantization"]
        assert {key: ours.get(key) for key in kinds} == {key: theirs.get(key) for key in kinds}
        assert file["producer"] == wanted["hf_quant_config"]["producer"]


def test_gptq_names_its_writer_and_has_the_configuration_of_older_readers(tmp_path: Path) -> None:
    fp.torch.export({"a.weight": source("source")}, layout="gptq", out=tmp_path, group_size=64, symmetric=False)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert json.loads((tmp_path / "quantize_config.json").read_text()) == config
    assert config["meta"] == {"quantizer": ["gptqmodel:7.7.0"]}
    assert not [note for note in fp.analysis.verify(tmp_path).notes if "gptqmodel 7.7 refuses" in note]
    for meta in (None, {"quantizer": "other:1"}):
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {**config, "meta": meta}}))
        assert [note for note in fp.analysis.verify(tmp_path).notes if "gptqmodel 7.7 refuses" in note]


def test_inputs_get_scales_where_they_were_measured(tmp_path: Path) -> None:
    model = Tiny()
    inputs = float(model.embed(TOKENS).detach().abs().max())
    report = fp.torch.export(model, layout="modelopt:fp8", out=tmp_path / "a", batch=TOKENS)
    assert not report.notes
    assert stored(tmp_path / "a" / "model.safetensors")["q_proj.input_scale"] == F32(inputs) / F32(448)
    fp.torch.export(model, layout="compressed-tensors:nvfp4", out=tmp_path / "b", batch=(TOKENS,))
    assert stored(tmp_path / "b" / "model.safetensors")["q_proj.input_global_scale"] == F32(2688) / F32(inputs)
    config = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["input_activations"]["dynamic"] == "local"
    assert config["ignore"] == ["lm_head"]
    report = fp.torch.export(model, layout="nvfp4", out=tmp_path / "c")
    assert "pass batch= to measure them" in report.notes[0]
    config = json.loads((tmp_path / "c" / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["input_activations"] is None


@pytest.mark.parametrize(("layout", "end"), [("modelopt:nvfp4", "weight_scale_2"), ("nvfp4", "weight_global_scale")])
def test_queries_keys_and_values_share_a_tensor_scale(layout: str, end: str, tmp_path: Path) -> None:
    model = Tiny()
    fp.torch.export(model, layout=layout, out=tmp_path)
    tensors = stored(tmp_path / "model.safetensors")
    amax = float(model.v_proj.weight.detach().abs().max())
    scales = {tensors[f"{name}_proj.{end}"].item() for name in "qkv"}
    wanted = F32(amax) / F32(2688) if layout.startswith("modelopt") else F32(2688) / F32(amax)
    assert scales == {float(wanted)}
    assert tensors[f"down.{end}"].item() != float(wanted)


@pytest.mark.parametrize("inputs", [8, 16, 24, 32])
@pytest.mark.parametrize("layout", ["compressed-tensors:int4", "compressed-tensors:int4_asym"])
def test_codes_of_few_inputs_have_the_bits_of_the_configuration(layout: str, inputs: int, tmp_path: Path) -> None:
    weight = torch.randn(16, inputs, generator=torch.Generator().manual_seed(0))
    fp.torch.export({"up_proj.weight": weight}, layout=layout, out=tmp_path, group_size=inputs)
    steps = 2 * weight.abs().amax(1, keepdim=True).numpy() / 15  # of 16 levels; codes of other bits miss by many
    for _ in range(2):  # without a configuration, 4 bits are assumed
        values = np.asarray(fp.analysis.open(tmp_path)["up_proj.weight"])
        assert np.all(np.abs(values - weight.numpy()) <= steps)
        assert fp.analysis.verify(tmp_path).ok
        (tmp_path / "config.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "layout", ["compressed-tensors:fp8_channel", "compressed-tensors:int8", "modelopt:fp8_channel"]
)
def test_a_weight_of_one_output_has_a_scale_per_output(layout: str, tmp_path: Path) -> None:
    fp.torch.export({"score.weight": torch.linspace(-1, 1, 128).reshape(1, -1)}, layout=layout, out=tmp_path)
    report = fp.analysis.verify(tmp_path)
    assert report.ok, report.problems


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("compressed-tensors:nvfp4", 1e-36), ("modelopt:nvfp4", 1e-44), ("torchao:nvfp4", 1e-36),
        ("torchao:nvfp4_swizzled", 1e-44), ("deepseek_fp8", 1e-38), ("deepseek_fp8", 1e-44),
        ("modelopt:fp8_channel", 1e-44),
    ],
)  # fmt: skip
def test_weights_whose_scales_become_0_or_infinite_are_refused(layout: str, size: float, tmp_path: Path) -> None:
    weight = (np.linspace(-1, 1, 128 * 256).reshape(128, 256) * size).astype(F32)
    ordinary = np.ones((128, 256), F32)
    with pytest.raises(ValueError, match=r"too small for .*Scale the weight up, or pass keep=\['a\.weight'\]"):
        fp.torch.export({"a.weight": weight, "b.weight": ordinary}, layout=layout, out=tmp_path)
    assert not [*tmp_path.iterdir()]
    fp.torch.export({"a.weight": weight * 1e30, "b.weight": ordinary}, layout=layout, out=tmp_path)
    assert fp.analysis.verify(tmp_path).ok


@pytest.mark.parametrize("offset", [5, -5])
@pytest.mark.parametrize("layout", ["hqq:int4", "hqq:int8", "hqq:int2"])
def test_hqq_weights_far_from_0_have_no_wrong_zero_points(layout: str, offset: int, tmp_path: Path) -> None:
    weight = source("source") / np.abs(source("source")).max() + F32(offset)
    fp.torch.export({"a.weight": weight}, layout=layout, out=tmp_path)
    report = fp.analysis.verify(tmp_path)
    assert report.ok, report.problems
