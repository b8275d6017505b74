"""`fp.torch.export`: the bytes of the libraries, values that read back, losses, and whole files or none."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.files import read_stored
from fpsim.analysis.tensors.writing.catalogue import LAYOUTS_WRITTEN, SHORT
from fpsim.analysis.tensors.writing.report import ExportReport
from fpsim.testing import assert_bits_equal
from tests.analysis.tensors.test_layouts import ROWS, WEIGHT, digest, file_of, safetensors
from tests.kit.published import DATA

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
    "bnb_nf4": ("bitsandbytes:nf4", "source", F32, {}),
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


@pytest.mark.parametrize(("kind", "block"), [("Q4_0", 0), ("Q5_0", 2), ("Q8_0", 4)])
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


@pytest.mark.parametrize("layout", ["torchao:mxfp8", "torchao:mxfp4", "torchao:nvfp4"])
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


class Tiny(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model with every kind of tensor that an export meets."""

    def __init__(self, dtype: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(16, 256)
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(256, 256, bias=False) for _ in range(3))
        self.norm = torch.nn.LayerNorm(256)
        self.down = torch.nn.Linear(256, 128)
        self.lm_head = torch.nn.Linear(128, 16, bias=False)
        self.register_buffer("steps", torch.arange(5))
        with torch.no_grad():
            self.v_proj.weight *= 3
        self.to(dtype or torch.float32)

    def forward(self, x: Any) -> Any:
        h = self.embed(x)
        return self.lm_head(self.down(self.norm(self.q_proj(h) + self.k_proj(h) + self.v_proj(h))))


TOKENS = torch.arange(16).reshape(2, 8)
QUANTISED = ["down.weight", "k_proj.weight", "q_proj.weight", "v_proj.weight"]


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [(layout, dtype) for layout in LAYOUTS_WRITTEN for dtype in ("float32", "bfloat16")]
    + [(layout, "float16") for layout in LAYOUTS_WRITTEN if layout.startswith("compressed-tensors")],
)
def test_every_layout_is_verified_reloads_and_keeps_the_rest(layout: str, dtype: str, tmp_path: Path) -> None:
    if layout.startswith("gguf"):
        pytest.importorskip("gguf")
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
        assert row.sqnr_db > 16
    plain = {one.name: one for one in read_stored(next(tmp_path.glob("model.*")))[0]}
    for name in ("embed.weight", "norm.bias", "lm_head.weight", "down.bias", "steps"):
        assert name in report.kept
        if name in plain:  # GGUF's reader leaves integers out
            array = np.concatenate([*plain[name].chunks()]).astype(np.float32).reshape(plain[name].shape)
            assert_bits_equal(array, before[name].float().numpy())
    assert report.output_error is not None
    assert 0 < report.output_error < 0.5
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
        "zero_point", "weight_block_size", "fmt", "scale_fmt", "load_in_4bit", "bnb_4bit_quant_type",
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
    assert "pass batch= for them" in report.notes[0]
    config = json.loads((tmp_path / "c" / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["input_activations"] is None


@pytest.mark.parametrize(("layout", "end"), [("modelopt:nvfp4", "weight_scale_2"), ("nvfp4", "weight_global_scale")])
def test_queries_keys_and_values_share_a_tensor_scale(layout: str, end: str, tmp_path: Path) -> None:
    model = Tiny()
    fp.torch.export(model, layout=layout, out=tmp_path)
    found = stored(tmp_path / "model.safetensors")
    amax = float(model.v_proj.weight.detach().abs().max())
    scales = {found[f"{name}_proj.{end}"].item() for name in "qkv"}
    wanted = F32(amax) / F32(2688) if layout.startswith("modelopt") else F32(2688) / F32(amax)
    assert scales == {float(wanted)}
    assert found[f"down.{end}"].item() != float(wanted)


def test_shards_have_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpsim.analysis.tensors.writing.export.SHARD", 100_000)
    fp.torch.export(Tiny(), layout="deepseek_fp8", out=tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert len(files) == 4
    values = fp.analysis.open(tmp_path)
    assert sorted(values) == sorted(Tiny().state_dict().keys() - {"steps"})
    assert fp.analysis.verify(tmp_path).ok
    monkeypatch.undo()
    fp.torch.export(Tiny(), layout="awq", out=tmp_path)  # takes the place of all of the earlier ones
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "fpsim_export.json", "model.safetensors"]


def test_a_checkpoint_of_another_layout_is_exported_with_its_tokenizer(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    model = Tiny(torch.bfloat16)
    fp.torch.export(model, layout="gptq", out=first, config={"model_type": "tiny"})
    (first / "tokenizer.json").write_text("{}")
    report = fp.torch.export(first, layout="compressed-tensors:int8", out=second)
    assert "tokenizer.json" in report.files
    assert json.loads((second / "config.json").read_text())["model_type"] == "tiny"
    one, two = fp.analysis.open(first), fp.analysis.open(second)
    assert (one.layout, two.layout) == ("gptq", "compressed-tensors:int8")
    assert sorted(two) == sorted(one)
    for name in QUANTISED:
        assert np.max(np.abs(one[name] - two[name])) <= np.max(np.abs(one[name])) / 127.5
    assert report.source_bytes < sum(2 * x.numel() for x in model.state_dict().values())
    with pytest.raises(ValueError, match="out must be another folder than the checkpoint's"):
        fp.torch.export(first, layout="awq", out=first)


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    model = Tiny()
    with torch.no_grad():
        model.down.weight[3, 5] = float("nan")
    for out in (tmp_path / "folder", tmp_path / "m.safetensors"):
        with pytest.raises(ValueError, match=r"must be finite; down\.weight holds NaN or Inf\. Mend it, or pass keep="):
            fp.torch.export(model, layout="compressed-tensors", out=out)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    fp.torch.export(Tiny(), layout="awq", out=tmp_path / "folder")
    before = {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    with pytest.raises(ValueError, match="must be finite"):
        fp.torch.export(model, layout="compressed-tensors", out=tmp_path / "folder")
    assert {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()} == before
    assert fp.torch.export(model, layout="compressed-tensors", out=tmp_path / "folder", keep=["lm_head", "down"]).kept[
        "down.weight"
    ] == "keep='down'"  # fmt: skip


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """The largest tensor and some bands are held at a time."""

    def peak(count: int) -> int:
        one = np.random.default_rng(0).standard_normal((256, 4096), np.float32)
        tensors = {f"l.{i}.weight": one.copy() for i in range(count)}
        tracemalloc.start()
        fp.torch.export(tensors, layout="gptq", out=tmp_path / str(count))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1)
    assert peak(12) < 1.2 * peak(2)


W = np.ones((64, 256), np.float32)
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an unknown layout": ({"a.weight": W}, {"layout": "gptqv2"}, "got 'gptqv2'. Did you mean 'gptq_v2'?"),
    "no layout": ({"a.weight": W}, {"layout": None}, "layout must be one of the 26"),
    "inputs that fill no groups": ({"a.weight": W[:, :96]}, {"layout": "gptq"}, "has 96. Pass group_size=32"),
    "inputs that fill no blocks": ({"a.weight": W[:, :40]}, {"layout": "nvfp4"}, "has groups of 16 inputs; a.weight"),
    "outputs that fill no words": ({"a.weight": W[:9]}, {"layout": "awq"}, "packs 8 outputs into a word"),
    "a group size without groups": ({"a.weight": W}, {"layout": "mxfp8", "group_size": 64}, "group_size is an option"),
    "an odd group size": ({"a.weight": W}, {"layout": "awq", "group_size": 12}, "must be a multiple of 8"),
    "other bits": ({"a.weight": W}, {"layout": "awq", "bits": 8}, "bits must be 4, or 8 of GPTQ; got 8 with 'awq'"),
    "asymmetric codes": ({"a.weight": W}, {"layout": "awq", "symmetric": False}, "symmetric=False is an option"),
    "nothing to quantise": ({"norm.weight": W[0]}, {"layout": "awq"}, "there is no weight to quantise in awq"),
    "a pattern of nothing": ({"a.weight": W}, {"layout": "awq", "keep": "b*"}, "'b*' matches none of a.weight"),
    "a weight without values": ({"a.weight": W[:0]}, {"layout": "awq"}, "a.weight: no values"),
    "a name without a layer": ({"a": W}, {"layout": "awq"}, "such as 'up.weight'; got 'a'. Rename it"),
    "no tensors": ({}, {"layout": "awq"}, "export takes tensors; got an empty mapping"),
    "no mapping": ([W], {"layout": "awq"}, "export takes a torch.nn.Module, a mapping of names"),
    "a batch without a model": ({"a.weight": W}, {"layout": "awq", "batch": W}, "batch needs a torch.nn.Module"),
    "a pattern that is no text": ({"a.weight": W}, {"layout": "awq", "keep": [3]}, "keep must be shell patterns"),
    "a long name of GGUF": ({"a" * 60 + ".weight": W}, {"layout": "gguf:Q8_0"}, "names of at most 63 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    tensors, options, said = REFUSED[case]
    with pytest.raises((ValueError, TypeError)) as refusal:
        fp.torch.export(tensors, out=tmp_path / "out", **options)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_folders_of_other_models_and_wrong_files_are_refused(tmp_path: Path) -> None:
    safetensors(tmp_path / "precious.safetensors", {"a": W})
    with pytest.raises(ValueError, match=r"that of an earlier export; .* holds precious\.safetensors"):
        fp.torch.export({"a.weight": W}, layout="awq", out=tmp_path)
    with pytest.raises(ValueError, match=r"awq is written into a folder or a \.safetensors file"):
        fp.torch.export({"a.weight": W}, layout="awq", out=tmp_path / "m.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["precious.safetensors"]


def test_a_model_of_one_layer_and_tied_weights(tmp_path: Path) -> None:
    layer = torch.nn.Linear(256, 64)
    for layout in ("deepseek_fp8", "awq", "nvfp4", "nf4"):
        fp.torch.export(layer, layout=layout, out=tmp_path / layout)
        values = fp.analysis.open(tmp_path / layout)
        assert sorted(values) == ["bias", "weight"]
        assert np.max(np.abs(values["weight"] - layer.weight.detach().numpy())) < 0.02
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(256, 64, bias=False), "b": torch.nn.Linear(256, 64, bias=False)})
    model["b"].weight = model["a"].weight
    report = fp.torch.export(model, layout="awq", out=tmp_path / "tied")
    assert report.notes == ("b.weight left out, it is the same memory as a.weight",)


def test_weights_of_layers_that_are_not_called_count(tmp_path: Path) -> None:
    """MultiheadAttention multiplies with the weight of its output projection itself."""
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(64, 2, bias=False, batch_first=True)
    x = torch.randn(2, 5, 64)
    report = fp.torch.export(attention, layout="compressed-tensors:int4", out=tmp_path, group_size=32, batch=(x, x, x))
    assert [row.tensor for row in report.weights] == ["out_proj.weight"]
    with torch.no_grad():
        attention.eval()
        first = attention(x, x, x)[0].double()
        attention.out_proj.weight.data = torch.from_numpy(fp.analysis.open(tmp_path)["out_proj.weight"])
        second = attention(x, x, x)[0].double()
    assert report.output_error is not None
    assert 0.01 < report.output_error <= float((second - first).norm() / first.norm())


class Mixture(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Experts in one tensor, as gpt-oss has them, a convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = torch.nn.Linear(64, 64)
        self.conv = torch.nn.Conv1d(64, 64, 32)
        self.experts = torch.nn.Module()
        self.experts.gate_up_proj = torch.nn.Parameter(torch.randn(4, 64, 32))

    def forward(self, x: Any) -> Any:
        return torch.einsum("bk,ekn->ben", self.attention(x), self.experts.gate_up_proj)


def test_of_gpt_oss_experts_alone_are_quantised_and_count(tmp_path: Path) -> None:
    model, x = Mixture(), torch.randn(3, 64)
    report = fp.torch.export(model, layout="mxfp4", out=tmp_path, batch=x)
    assert [row.tensor for row in report.weights] == ["experts.gate_up_proj"]
    assert report.kept["attention.weight"] == "gpt-oss quantises experts alone"
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config["modules_to_not_convert"] == ["attention"]
    values = fp.analysis.open(tmp_path)
    assert values["experts.gate_up_proj"].shape == (4, 64, 32)
    with torch.no_grad():
        first = model(x).double()
        model.experts.gate_up_proj.data = torch.from_numpy(values["experts.gate_up_proj"])
        second = model(x).double()
    assert report.output_error == pytest.approx(float((second - first).norm() / first.norm()), rel=1e-9)


def test_tied_weights_are_loaded_in_both_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False))
    model[1].weight = model[0].weight
    x = torch.randn(4, 64)
    report = fp.torch.export(model, layout="compressed-tensors:int8", out=tmp_path, batch=x)
    weight = torch.from_numpy(fp.analysis.open(tmp_path)["0.weight"])
    with torch.no_grad():
        first, second = model(x).double(), (x @ weight.T @ weight.T).double()
    assert report.output_error == pytest.approx(float((second - first).norm() / first.norm()), rel=1e-4)


def test_reports_are_tabulated_drawn_and_saved(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    report = fp.torch.export(Tiny(), layout="nf4", out=tmp_path / "out")
    assert list(report.to_frame().tensor) == [row.tensor for row in report.weights]
    assert report.worst.sqnr_db == min(row.sqnr_db for row in report.weights)
    assert "bitsandbytes:nf4, 4 weights quantised" in str(report)
    assert report.worst.tensor in report._repr_html_()
    assert report.plot().get_xlabel() == "SQNR in dB"
    report.save(tmp_path / "r.json")
    assert ExportReport.load(tmp_path / "r.json") == report
    (tmp_path / "r.json").write_text("[]")
    with pytest.raises(ValueError, match=r"is no report that ExportReport\.save wrote"):
        ExportReport.load(tmp_path / "r.json")


def test_short_names_are_names() -> None:
    assert set(SHORT.values()) <= set(LAYOUTS_WRITTEN)
