"""on="this CPU": torch.mm on the processor at hand, as a recipe, in a budget and in a diff."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.schedules.shaped import ISAS
from fpsim.testing import assert_bits_equal

torch: Any = pytest.importorskip("torch")
ft: Any = importlib.import_module("fpsim.torch")
here: Any = importlib.import_module("fpsim.recipes.this_cpu")
hardware: Any = importlib.import_module("fpsim.recipes.hardware")
placed, recipe_on_chip = hardware.placed, hardware.recipe_on_chip

Set = Callable[..., None]
BF16 = ft.RECIPES["BF16"]


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Take this machine's processor for one with some instructions, under a value of ONEDNN_MAX_CPU_ISA."""

    def set_to(isa: str, limit: str | None = None) -> None:
        features = {name for each in ISAS[ISAS.index(isa) :] for name in here.FEATURES[each]} if isa else set()
        monkeypatch.setattr("fpsim.runtime.host.host_features", lambda: frozenset(features))
        for name in here.NAMES:
            monkeypatch.delenv(name, raising=False)
        if limit is not None:
            monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)

    return set_to


def test_the_instructions_are_the_largest_that_processor_and_limit_allow(
    processor: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    for isa in ISAS:
        processor(isa)
        assert here.isa_here() == isa
    for isa, limit, want in (
        ("amx", "AVX512_CORE_BF16", "avx512_bf16"), ("amx", "avx512_core", "avx512"), ("avx512", "ALL", "avx512"),
        ("avx2", "AVX512_CORE_FP16", "avx2"), ("avx512_fp16", "AVX2", "avx2"), ("amx_fp16", "AVX512_CORE_AMX", "amx"),
        ("amx_fp16", "DEFAULT", "amx_fp16"), ("avx512_bf16", "AVX512_CORE_VNNI", "avx512_vnni"),
        ("avx512_bf16", "AVX2_VNNI", "avx2_vnni"), ("amx", "", "amx"),
    ):  # fmt: skip
        processor(isa, limit)
        assert here.isa_here() == want
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    for limit, want in (("", "avx2"), ("AVX512_CORE", "avx512")):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        assert here.isa_here() == want


def test_a_limit_names_no_instructions_that_the_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {name for isa in ("avx512_bf16", "avx512_vnni", "avx512", "avx2") for name in here.FEATURES[isa]}
    monkeypatch.setattr("fpsim.runtime.host.host_features", lambda: frozenset(features))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2_VNNI")  # whose VEX form Ice Lake and Zen 4 lack
    assert here.isa_here() == "avx2"


def test_a_processor_or_a_limit_without_rules_is_refused_in_a_sentence(processor: Set) -> None:
    processor("")
    with pytest.raises(ValueError, match=r"is not known, only on x86-64 processors with AVX2\. Name a chip"):
        placed(BF16, "this CPU")
    processor("avx512", "SSE41")
    with pytest.raises(ValueError, match=r"under ONEDNN_MAX_CPU_ISA='SSE41' is not known, only under DEFAULT, ALL, "):
        placed(BF16, "this CPU")


def test_products_follow_torch_mm_in_the_layouts_of_a_layer(processor: Set) -> None:
    processor("avx512_bf16")
    recipe, notes = placed(BF16, "This cpu")
    for name, layout in (("fprop", "nt"), ("dgrad", "nn"), ("wgrad", "tn")):
        product = getattr(recipe, name)
        assert product.schedule == fp.schedules.torch_mm("avx512_bf16", layout=layout)  # type: ignore[arg-type]
        assert (product.accumulate, product.out_fmt) == (fp.FusedMultiplyAdd("fp32"), fp.BF16)
    assert recipe_on_chip(fp.recipes.find("BF16"), "This cpu")[0].linear == recipe
    assert notes[0][0].startswith("Added as by torch 2.13.0 with one thread and the instructions of avx512_bf16")
    assert placed(ft.RECIPES["FP32"], "this CPU").recipe == ft.RECIPES["FP32"]
    with pytest.raises(ValueError, match=r"multiplies BF16 and FP16 without scales; got fprop of E4M3 x E4M3\. Take"):
        placed(ft.RECIPES["FP8_TENSOR"], "this CPU")
    with pytest.raises(ValueError, match="Did you mean 'this CPU'"):
        placed(BF16, "this CPUs")


def test_another_version_of_torch_is_noted(processor: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("avx2")
    monkeypatch.setattr(here, "version", lambda name: "2.99.0+cpu")
    notes = [note for note, _ in placed(BF16, "this CPU").notes]
    assert "torch 2.99.0 is installed here, which may add otherwise" in notes


def test_recipes_with_such_a_schedule_are_written_and_read(processor: Set, tmp_path: Any) -> None:
    processor("avx512")
    recipe = placed(BF16, "this CPU").recipe
    assert fp.recipes.find_linear(recipe) == recipe
    with pytest.raises(
        ValueError, match=r"torch_mm\('avx2'\) chooses the accumulator itself, and requires accumulate=FusedMultiplyAdd"
    ):
        ft.Product("x86_avx512_bf16_f32", schedule=fp.schedules.torch_mm("avx2"))


def layer(recipe: Any, k: int, n: int, bias: bool) -> Any:
    torch.manual_seed(1)
    made = ft.QuantLinear(k, n, bias, recipe=recipe, name="0")
    with torch.no_grad():
        made.weight.mul_(8)
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("isa", ["avx512_bf16", "avx512"])
def test_a_layer_multiplies_as_torch_mm_on_that_processor(isa: Any, bias: bool, processor: Set) -> None:
    processor(isa)
    linear = layer(placed(BF16, "this CPU").recipe, 600, 20, bias)
    x = torch.randn(30, 600).requires_grad_()
    y = linear(x)
    y.backward(dy := torch.randn(30, 20))
    values = [t.detach().numpy() for t in (x, linear.weight, dy)]
    xs, ws, ds = (fp.cast(value, fp.BF16) for value in values)

    def mm(a: Any, b: Any, layout: Any, **words: Any) -> Any:
        return fp.matmul(a, b, schedule=fp.schedules.torch_mm(isa, layout=layout), **words).astype(np.float32)

    words = {"bias": linear.bias.detach().numpy()} if bias else {}
    assert_bits_equal(y.detach().numpy(), mm(xs, ws.T, "nt", **words))
    assert x.grad is not None
    assert_bits_equal(x.grad.numpy(), mm(ds, ws, "nn"))
    assert_bits_equal(linear.weight.grad.numpy(), mm(ds.T, xs, "tn"))


def test_shapes_and_biases_without_a_rule_are_refused_with_a_sentence(processor: Set) -> None:
    processor("avx512_bf16")
    small = layer(placed(BF16, "this CPU").recipe, 8, 4, False)
    with pytest.raises(ValueError, match=r"'nt'\) adds 3 x 4 x 8 in lanes or regions that layers do not have"):
        small(torch.randn(3, 8))


def test_a_part_of_a_replayed_product_has_the_order_of_the_whole(processor: Set) -> None:
    replay: Any = importlib.import_module("fpsim.torch.replay").ProductReplay
    processor("avx512_bf16")
    linear = layer(placed(BF16, "this CPU").recipe, 1500, 20, False)
    x = torch.randn(30, 1500)
    whole = linear(x)
    assert torch.equal(replay(linear, x).part(slice(2, 3), slice(0, 20)), whole[2:3])


def test_a_budget_and_a_diff_run_on_this_cpu(processor: Set) -> None:
    pytest.importorskip("pandas")
    processor("avx512_bf16")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 40, bias=False))
    x = torch.randn(64, 300)
    with torch.no_grad():  # what is left of the result are roundings
        x[:, 150:] = x[:, :150]
        model[0].weight[:, 150:] = -model[0].weight[:, :150]
    with fp.analysis.record(model, keep=1) as recording:
        model(x).sum().backward()
    budget = fp.analysis.budget(recording, recipe="BF16", on="this CPU")
    row = budget.row("0", "fprop")
    assert row.schedule == "torch_mm('avx512_bf16', layout='nt')"
    assert any("Added as by torch 2.13.0 with one thread" in note for note in budget.notes)
    divergence = fp.analysis.diff(model, x, "this CPU", "H100", recipe="BF16")
    assert divergence is not None
    assert divergence.layer == "0"
    assert not fp.analysis.diff(model, x, "this CPU", "torch_mm('avx512_bf16', layout='nt')", recipe="BF16")


@pytest.mark.slow
def test_a_linear_layer_of_torch_in_bf16_has_these_bits_on_this_machine() -> None:
    if torch.__version__.partition("+")[0] != here.TORCH:
        pytest.skip(f"the rules are those of torch {here.TORCH}, and {torch.__version__} is here")
    try:
        isa = here.isa_here()
    except ValueError as reason:
        pytest.skip(str(reason))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    compared = 0
    try:
        for m, n, k in ((30, 20, 600), (64, 128, 1500), (100, 70, 2500), (5, 200, 90), (40, 33, 4000)):
            torch.manual_seed(m)
            x, w, b = (torch.randn(*shape).bfloat16() for shape in ((m, k), (n, k), (n,)))
            x[:, k // 2 :], w[:, k // 2 :] = x[:, : k - k // 2], -w[:, : k - k // 2]
            want = torch.nn.functional.linear(x, w, b * 2.0**-20)
            library = fp.schedules.torch_mm(isa, layout="nt")
            if library.declines(m, n, k) or not library.at(m, n, k).adds_bias:
                continue
            codes = [t.view(torch.int16).numpy().view(np.uint16) for t in (x, w, want)]
            bias = (b * 2.0**-20).float().numpy()
            got = fp.matmul(codes[0], codes[1].T, schedule=library, fmt=fp.BF16, bias=bias)
            assert_bits_equal(got.view(np.uint16), codes[2])
            compared += 1
    finally:
        torch.set_num_threads(threads)
    if not compared:
        pytest.skip(f"no shape has a proven rule with the instructions of {isa}")
