"""Exports of whole models: shards, tokenizers, tied weights, memory, and bad input."""

from __future__ import annotations

import ast
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.writing.catalogue import LAYOUTS_WRITTEN, SHORT
from fpsim.analysis.tensors.writing.report import ExportReport
from tests.analysis.tensors.test_layouts import safetensors
from tests.torch.export_cases import Tiny

torch = pytest.importorskip("torch")


QUANTISED = ["down.weight", "k_proj.weight", "q_proj.weight", "v_proj.weight"]


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
        said = r"must be finite in float32; down\.weight holds NaN, Inf or larger values\. Correct it, or pass keep="
        with pytest.raises(ValueError, match=said):
            fp.torch.export(model, layout="compressed-tensors", out=out)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    fp.torch.export(Tiny(), layout="awq", out=tmp_path / "folder")
    before = {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    with pytest.raises(ValueError, match="must be finite in float32"):
        fp.torch.export(model, layout="compressed-tensors", out=tmp_path / "folder")
    assert {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()} == before
    assert fp.torch.export(model, layout="compressed-tensors", out=tmp_path / "folder", keep=["lm_head", "down"]).kept[
        "down.weight"
    ] == "keep='down'"  # fmt: skip


def test_float64_weights_that_float32_loses_are_refused(tmp_path: Path) -> None:
    """They became zeros, of which the report said that they have no error."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, dtype=torch.float64))
    with torch.no_grad():
        model[0].weight *= 1e-200
    said = r"must be in the range of float32; 0\.weight holds values of up to 1\.2\de-201\. Scale it up, or pass keep="
    with pytest.raises(ValueError, match=said):
        fp.torch.export(model, layout="gguf:Q8_0", out=tmp_path / "m.gguf", keep=())
    with torch.no_grad():
        model[0].weight.zero_()
    fp.torch.export(model, layout="gguf:Q8_0", out=tmp_path / "m.gguf", keep=())


@pytest.mark.parametrize("layout", ["awq", "gptq", "bitsandbytes:int8", "gguf:Q4_1", "gguf:Q8_0"])
def test_weights_beyond_float16_are_refused(layout: str, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    with pytest.raises(ValueError, match=r"w\.weight holds values of up to 4\.02e\+09, which .* cannot hold"):
        fp.torch.export({"w.weight": weight * np.float32(1e9)}, layout=layout, out=tmp_path / "out")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_number_of_threads_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for threads in ("1", "3"):
        monkeypatch.setenv("FPSIM_NUM_THREADS", threads)
        for layout in ("gptq", "nvfp4"):
            fp.torch.export(Tiny(), layout=layout, out=tmp_path / threads / layout)
        reports = [ExportReport.load(tmp_path / threads / layout / "fpsim_export.json") for layout in ("gptq", "nvfp4")]
        stored = [(tmp_path / threads / layout / "model.safetensors").read_bytes() for layout in ("gptq", "nvfp4")]
        files.append(([report.weights for report in reports], stored))
    assert files[0] == files[1]


def test_memory_does_not_grow_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest tensor and some bands are held at a time, by each thread."""

    def peak(count: int, threads: int) -> int:
        monkeypatch.setenv("FPSIM_NUM_THREADS", str(threads))
        one = np.random.default_rng(0).standard_normal((256, 4096), np.float32)
        tensors = {f"l.{i}.weight": one.copy() for i in range(count)}
        tracemalloc.start()
        fp.torch.export(tensors, layout="gptq", out=tmp_path / str(count))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1, 1)
    alone = peak(2, 1)
    assert min(peak(12, 1) for _ in range(3)) < 1.2 * alone  # other threads of the process may take memory
    assert min(peak(6, 2) for _ in range(3)) < 2.2 * alone


W = np.ones((64, 256), np.float32)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an unknown layout": ({"a.weight": W}, {"layout": "gptqv2"}, "got 'gptqv2'. Did you mean 'gptq_v2'?"),
    "no layout": ({"a.weight": W}, {"layout": None}, "layout must be one of the 37"),
    "inputs that fill no groups": ({"a.weight": W[:, :96]}, {"layout": "gptq"}, "has 96. Pass group_size=32"),
    "inputs that fill no blocks": ({"a.weight": W[:, :40]}, {"layout": "nvfp4"}, "has groups of 16 inputs; a.weight"),
    "outputs that fill no words": ({"a.weight": W[:9]}, {"layout": "awq"}, "packs 8 outputs into a word"),
    "a group size without groups": ({"a.weight": W}, {"layout": "mxfp8", "group_size": 64}, "group_size is an option"),
    "an odd group size": ({"a.weight": W}, {"layout": "awq", "group_size": 12}, "must be a multiple of 8"),
    "other bits": ({"a.weight": W}, {"layout": "awq", "bits": 8}, "bits must be 4, or 8 for GPTQ; got 8 for 'awq'"),
    "asymmetric codes": ({"a.weight": W}, {"layout": "awq", "symmetric": False}, "symmetric=False is an option"),
    "nothing to quantise": ({"norm.weight": W[0]}, {"layout": "awq"}, "there is no weight to quantise in awq"),
    "a pattern of nothing": ({"a.weight": W}, {"layout": "awq", "keep": "b*"}, "'b*' matches none of a.weight"),
    "a weight without values": ({"a.weight": W[:0]}, {"layout": "awq"}, "a.weight: no values"),
    "a name without a layer": ({"a": W}, {"layout": "awq"}, "such as 'up.weight'; got 'a'. Rename it"),
    "no tensors": ({}, {"layout": "awq"}, "export takes tensors; got an empty mapping"),
    "no mapping": ([W], {"layout": "awq"}, "export takes a torch.nn.Module, a mapping of names"),
    "a batch without a model": ({"a.weight": W}, {"layout": "awq", "batch": W}, "batch needs a torch.nn.Module"),
    "a pattern that is no text": ({"a.weight": W}, {"layout": "awq", "keep": [3]}, "keep must be shell patterns"),
    "groups that fill no bytes": ({"a.weight": W[:5]}, {"layout": "hqq:int1"}, "packs the codes of 8 groups together"),
    "inputs that fill no groups of HQQ": ({"a.weight": W[:, :96]}, {"layout": "hqq"}, "has groups of 64 inputs"),
    "values beyond float16": ({"a.weight": 1e5 * W}, {"layout": "bitsandbytes:int8"}, "values of up to 1e+05, which"),
    "a step beyond float16": ({"a.weight": 1e8 * W}, {"layout": "gguf:Q8_0"}, "gguf:Q8_0 cannot hold: some read back"),
    "a pattern of None": ({"a.weight": W}, {"layout": "awq", "keep": None}, "keep must be shell patterns such as"),
    "a name that the layout takes": (
        {"a.weight": W, "a.weight_scale_inv": W}, {"layout": "deepseek_fp8", "keep": "*_inv"},
        "deepseek_fp8 stores a tensor called a.weight_scale_inv, and the model has another one",
    ),
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


BAD = np.full_like(W, np.nan)
ADVISED: dict[str, tuple[dict[str, Any], str]] = {  # "bad" tensors must be kept, "good" ones and heads must not change
    "one of two shapes": ({"bad.weight": W[:, :100], "good.weight": W}, "gptq"),
    "several layers": (
        {f"{word}.{i}.{last}.weight": W[:, :n]
         for word, last, n in (("bad", "up", 8), ("good", "down", 256)) for i in (0, 1)},
        "awq",
    ),
    "names that a pattern doesn't match": ({"bad[0].up.weight": W[:, :20], "good[0].up.weight": W}, "nvfp4"),
    "names shared by other weights": (
        {"bad.up.weight": W[:, :20], "bad2.up.weight": W[:, :20], "good.up.weight": W}, "mxfp8",
    ),
    "no layer": ({"bad": W, "bad.up": W, "good.weight": W}, "awq"),
    "NaN": ({"bad.weight": BAD, "good.weight": W}, "deepseek_fp8"),
    "too large": ({"bad.weight": 1e5 * W, "good.weight": W}, "gptq"),
    "outputs": ({"bad.weight": W[:9], "good.weight": W}, "gptq_v2"),
}  # fmt: skip


@pytest.mark.parametrize("case", ADVISED)
def test_the_advice_of_a_refusal_leads_to_an_export(case: str, tmp_path: Path) -> None:
    tensors, layout = ADVISED[case]
    tensors = {**tensors, "lm_head.weight": W, "proj.head.weight": W}
    with pytest.raises(ValueError, match="keep=") as refusal:
        fp.torch.export(tensors, layout=layout, out=tmp_path, keep=["lm_head", "proj.*"])
    advised = ast.literal_eval(str(refusal.value).partition("keep=")[2].partition(" to leave ")[0])
    report = fp.torch.export(tensors, layout=layout, out=tmp_path, keep=advised)
    assert set(report.kept) == {name for name in tensors if name.startswith(("bad", "lm_", "proj."))}


def test_a_refusal_proposes_only_group_sizes_that_all_weights_take(tmp_path: Path) -> None:
    def refusal(**tensors: Any) -> str:
        with pytest.raises(ValueError, match="has groups of 128 inputs") as refused:
            fp.torch.export({f"{name}.weight": x for name, x in tensors.items()}, layout="gptq", out=tmp_path)
        return str(refused.value)

    assert refusal(a=W[:, :96], b=W).endswith("Pass group_size=32, or keep=['a.weight'] to leave it unquantised.")
    several = refusal(a=W[:, :96], b=W[:, :48], c=W)
    assert "Another weight doesn't fit either. Pass group_size=16, or keep=['a.weight', 'b.weight'] to" in several
    assert refusal(a=W[:, :100], b=W).endswith("has 100. Pass keep=['a.weight'] to leave it unquantised.")
    assert refusal(a=W[:, :100]).endswith("has 100. Choose another layout.")


def test_folders_of_other_models_and_wrong_files_are_refused(tmp_path: Path) -> None:
    safetensors(tmp_path / "precious.safetensors", {"a": W})
    with pytest.raises(ValueError, match=r"folder of an earlier export; .* holds precious\.safetensors"):
        fp.torch.export({"a.weight": W}, layout="awq", out=tmp_path)
    with pytest.raises(ValueError, match=r"awq is written into a folder or a \.safetensors file"):
        fp.torch.export({"a.weight": W}, layout="awq", out=tmp_path / "m.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["precious.safetensors"]


@pytest.mark.parametrize(("layout", "file"), [("deepseek_fp8", "safetensors"), ("gguf", "GGUF")])
def test_tensors_of_a_dtype_that_the_file_does_not_have_are_left_out(layout: str, file: str, tmp_path: Path) -> None:
    odd = np.ones((64, 64), ml_dtypes.float8_e3m4)
    report = fp.torch.export({"up.weight": np.ones((64, 64), np.float32), "down.weight": odd}, layout=layout,
                             out=tmp_path / "model", keep=["down"])  # fmt: skip
    assert f"down.weight left out, {file} has no type for float8_e3m4." in report.notes
    assert list(fp.analysis.open(tmp_path / "model")) == ["up.weight"]


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


def test_options_are_numpy_integers_and_a_single_missing_scale_is_singular(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"up": torch.nn.Linear(32, 32, bias=False), "extra": torch.nn.Linear(32, 32)})
    model.forward = lambda x: model["up"](x)
    report = fp.torch.export(model, layout="compressed-tensors:nvfp4", out=tmp_path / "nvfp4", batch=torch.ones(1, 32))
    assert report.notes == (
        "Scales of inputs are missing for extra.weight, whose layer was not called, or only with zeros.",
    )
    weight = {"up.weight": np.ones((16, 64), np.float32)}
    fp.torch.export(weight, layout="gptq", out=tmp_path / "gptq", bits=np.int64(8), group_size=np.int64(64))  # type: ignore[arg-type]
    assert fp.analysis.verify(tmp_path / "gptq").ok
    with np.errstate(all="raise"), pytest.raises(ValueError, match="holds NaN, Inf or larger values"):
        fp.torch.export({"a.weight": np.full((16, 64), 1e300)}, layout="awq", out=tmp_path / "awq", group_size=64)


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


class Wrapped(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A layer with the weight of the layer inside it, as adapters have it, whose last logits are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(64)
        self.norm.eval()

    @property
    def weight(self) -> Any:
        return self.inner.weight

    def forward(self, x: Any) -> Any:
        return torch.cat((self.inner(self.norm(x)), torch.full((len(x), 2), -torch.inf)), 1)


def test_a_batch_leaves_the_model_as_it_was_and_masked_logits_do_not_count(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Wrapped(), torch.randn(4, 64)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = fp.torch.export(model, layout="deepseek_fp8", out=tmp_path, batch=x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in (model, model.inner, model.norm)] == [True, True, False]
    assert 0.01 < (report.output_error or 0) < 0.1
    assert 0 < (report.output_kl or 0) < 0.1


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
    with pytest.raises(ValueError, match=r"is not a report that ExportReport\.save wrote"):
        ExportReport.load(tmp_path / "r.json")


def test_short_names_are_names() -> None:
    assert set(SHORT.values()) <= set(LAYOUTS_WRITTEN)


def test_the_time_of_an_export_grows_with_the_number_of_weights(tmp_path: Path) -> None:
    """As in mixtures of experts, which have ten thousand weights; with the cube of the number it took 40 s."""
    layers = [f"layers.{i}.{last}.weight" for i in range(300) for last in ("gate_proj", "up_proj", "down_proj")]
    weights = {name: np.ones((1, 32), np.float32) for name in layers}
    start = time.process_time()
    report = fp.torch.export(weights, layout="nvfp4", out=tmp_path)
    assert len(report.weights) == 900
    assert time.process_time() - start < 15
