"""Diagnoses: work that is resumed, their pages, and products that no recipe of linear layers names."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.diagnosis import stages
from fpsim.analysis.studies.diagnosis.recommendation import recommendation_sentences, rival_sentences
from fpsim.analysis.studies.diagnosis.verdict import relative, relative_above
from tests.analysis.studies.diagnosis.models import diagnosed, healthy, nn, quiet, shrunk, squared, torch

# ---- work that goes on


def figures(diagnosis: Any) -> tuple[Any, ...]:
    return (
        diagnosis.verdicts,
        diagnosis.sensitivity,
        diagnosis.plan.assignment,
        diagnosis.plan.measured,
        diagnosis.budgets,
        diagnosis.answer,
    )


def test_the_same_call_goes_on(tensor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = functools.partial(diagnosed, *healthy(), out=tmp_path)

    def stopped(share: float, text: str) -> None:
        if share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(recipes="FP8_TENSOR", progress=stopped)
    calls = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(options["layers"])
        return fp.analysis.budget(*arguments, **options)

    monkeypatch.setattr(stages, "budget", counted)
    assert figures(call(recipes="FP8_TENSOR")) == figures(tensor)
    assert 0 < len(calls) < 6  # three layers in two recipes
    calls.clear()
    assert figures(call(recipes="FP8_TENSOR")) == figures(tensor)
    assert not calls
    call(recipes="BF16")  # fewer recipes are another plan of the same cells
    assert not calls


def test_another_model_is_refused(tmp_path: Path) -> None:
    model, batches = healthy(128, 128)
    diagnosed(model, batches, recipes="FP8_TENSOR", out=tmp_path)
    with torch.no_grad():
        model[0].weight[0, 0] += 1
    with pytest.raises(
        ValueError, match=r"out must be a folder of .* results of another version, with other weights, settings, batch"
    ):
        diagnosed(model, batches, recipes="FP8_TENSOR", out=tmp_path)


# ---- the report


def test_the_page_begins_with_the_answer(raw: Any, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    pytest.importorskip("tomli_w")
    pytest.importorskip("pandas")
    page, table, plan = raw.save(tmp_path / "out")
    text = page.read_text()
    sides = text[text.index('aria-label="Recipes"') :]
    sides = sides[: sides.index("</table>")]
    classes = re.findall(r'class="(long|text)">(?:no more|more) than the standard deviation', sides)
    assert len(set(classes)) == 1
    assert "and convolutions as the products of" in text  # the method
    heading = text[text.index("<h1>") + 4 : text.index("</h1>")]
    assert heading.replace("\N{NO-BREAK SPACE}", " ") == raw.sentences[0]
    assert text.index("<h1>") < text.index("<table")
    assert text.count("<svg") == 3
    assert "mathdefault" not in text
    assert raw.identity in text
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert len(table.read_text().splitlines()) == 1 + len(raw.verdicts)
    model, _ = shrunk()
    assert fp.torch.quantize_linears(model, str(plan)) == ["a", "b", "c"]


def test_names_are_untrusted(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("<b>\x1b[31m", nn.Linear(128, 128))
    diagnosis = diagnosed(model, [torch.randn(128, 128)], recipes="FP8_TENSOR", limit=0.001)
    text = diagnosis.page(tmp_path / "page.html").read_text()
    assert "<b>" not in text + diagnosis._repr_html_()
    assert "\x1b" not in text + diagnosis.answer


def test_names_that_look_like_formulas_are_texts_in_the_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("jinja2")
    model = nn.Sequential()
    model.add_module("=1+1", nn.Linear(64, 8))
    diagnosis = diagnosed(model, [torch.ones(16, 64)], recipes="FP8_TENSOR")
    diagnosis.save(tmp_path)
    table, wanted = pandas.read_csv(tmp_path / "products.csv"), diagnosis.to_frame()
    assert set(table["layer"]) == {"'=1+1"}
    numbers = ["bits", "error", "gradient_spread", "fits"]
    pandas.testing.assert_frame_equal(table[numbers], wanted[numbers], check_exact=True)


def test_the_table_has_every_product(usual: Any) -> None:
    pytest.importorskip("pandas")
    table = usual.to_frame()
    assert len(table) == len(usual.verdicts) == 3 * 8
    chosen = table[table.chosen]
    assert (
        dict(zip(zip(chosen.layer, chosen["product"], strict=True), chosen.recipe, strict=True))
        == usual.plan.assignment
    )
    assert "layer  fprop" in str(usual)
    assert usual.sentences[0] in usual._repr_html_()
    with pytest.raises(KeyError, match="no verdict of layer, product and recipe"):
        usual["0", "dgrad", "BF16"]
    assert usual.plot() is not None


def test_a_recipe_that_a_layer_cannot_have_is_said() -> None:
    diagnosis = diagnosed(*healthy(120, 128, 128), recipes=["FP8_TENSOR", "DEEPSEEK_V3"])
    one = diagnosis["0", "fprop", "DEEPSEEK_V3"]
    assert not one.fits
    assert one.why == (
        "its fprop cannot be planned, since its 120 terms are not a multiple of 128, the terms that share a scale or a "
        "transform, which fp.train and Transformer Engine require; fp.torch.quantize_linears would pad them with zeros"
    )
    assert diagnosis.low == "FP8_TENSOR"
    assert not math.isnan(one.error)


def test_loss_must_call_the_model() -> None:
    model, batches = healthy()
    with pytest.raises(ValueError, match=r"loss must call the model that it is given, as model\(...\)"):
        fp.analysis.diagnose(model, batches, lambda model, x: model[0](x).sum(), progress=quiet)
    assert squared(model, batches[0]) > 0


# ---- attention, and products that no recipe of linear layers names


class Heads(nn.Module):  # type: ignore[misc]
    """torch's own multi-head attention between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.heads, self.down = (
            nn.Linear(64, 64),
            nn.MultiheadAttention(64, 4, batch_first=True),
            nn.Linear(64, 64),
        )

    def forward(self, x: Any) -> Any:
        x = self.up(x)
        return self.down(self.heads(x, x, x, need_weights=False)[0])


class Loud(nn.Module):  # type: ignore[misc]
    """Attention whose scores are far beyond the largest number of FP16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        queries, keys = self.query(x) * 400, self.key(x) * 400
        return self.out(nn.functional.scaled_dot_product_attention(queries, keys, x))


def mean_squared(model: Any, x: Any) -> Any:
    return model(x).square().mean()


def sequences() -> list[Any]:
    torch.manual_seed(1)
    return [torch.randn(8, 32, 64) for _ in range(2)]


def test_multi_head_attention_and_its_projections_are_judged_by_the_budget(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    diagnosis = fp.analysis.diagnose(Heads(), sequences(), mean_squared, recipes="FP8_TENSOR", progress=quiet)
    parts = ("heads.in_proj", "heads.attention.scores", "heads.attention.values", "heads.out_proj")
    assert tuple(dict.fromkeys(one.layer for one in diagnosis.alone)) == parts
    for layer in parts:
        budget = fp.analysis.budget(diagnosis.recording, recipe="FP8_TENSOR", layers=layer)
        for row in budget.rows:
            (verdict,) = (
                one
                for one in diagnosis.alone
                if (one.layer, one.product, one.recipe) == (layer, row.product, "FP8_TENSOR")
            )
            assert (verdict.error, verdict.fits) == (row.joint, row.joint <= 0.1)
    assert diagnosis.coverage.weights == diagnosis.coverage.multiplications == 1.0
    page = diagnosis.page(tmp_path / "report.html").read_text()
    assert all(f">{layer}</td>" in page for layer in parts)
    assert "12 of 12 products of attention and of weights multiplied by hand" in diagnosis.answer
    assert not any(sentence.startswith("Not judged") for sentence in diagnosis.sentences)


@pytest.mark.parametrize("recipes", [["FP16"], ["FP16", "FP8_TENSOR"]])
def test_scores_that_overflow_are_said_first(recipes: list[str]) -> None:
    model, batches = Loud(), sequences()
    diagnosis = fp.analysis.diagnose(model, batches, mean_squared, recipes=recipes, progress=quiet)
    q, k = (diagnosis.recording.operands[1, "attention", which] for which in ("query", "key"))
    assert np.abs(q @ k.swapaxes(-2, -1)).max() > 65504
    assert diagnosis.sentences[0].startswith(
        "attention.scores cannot use FP16 on H100: its fprop overflows, since it reaches "
    )
    assert diagnosis.sentences[0].endswith(" and FP16 ends at 65,504.")


def test_one_recipe_everywhere_is_preferred_to_a_mix_that_saves_little() -> None:
    model, batches = healthy(128, 256, 256, 128)
    diagnosis = fp.analysis.diagnose(
        model, batches, mean_squared, recipes=["BF16", "FP8_TENSOR", "NVFP4"], on="B200", limit=0.149, progress=quiet
    )  # fmt: skip
    assert any(one.fits for one in diagnosis.verdicts if one.recipe == "NVFP4")  # a mix of 6.5 bits, 13 % off
    assert set(diagnosis.plan.assignment.values()) == {"FP8_TENSOR"}
    assert diagnosis.low == "FP8_TENSOR"
    assert diagnosis.plan.measured < 0.06


def test_the_layer_in_which_an_error_begins_comes_before_what_inherits_it() -> None:
    from fpsim.analysis.studies.diagnosis.diagnosed import ill_layers

    diagnosis = fp.analysis.diagnose(
        *healthy(128, 256, 256, 128), mean_squared, recipes=["BF16", "FP8_TENSOR"], limit=0.02, progress=quiet
    )  # fmt: skip
    assert set(ill_layers(diagnosis, "FP8_TENSOR")) == {"0", "2", "4"}
    for first in ("0", "2", "4"):  # as if the others had all of their error from before
        verdicts = tuple(
            dataclasses.replace(one, inherited=0.0 if one.layer == first else 10 * one.error)
            for one in diagnosis.verdicts
        )
        assert ill_layers(dataclasses.replace(diagnosis, verdicts=verdicts), "FP8_TENSOR")[0] == first


def test_a_cache_of_keys_and_values_is_a_product_of_its_own() -> None:
    torch.manual_seed(1)
    batches = [torch.randn(2, 32, 64) for _ in range(2)]  # 8 heads of all sequences, which are all looked at
    diagnosis = fp.analysis.diagnose(Heads(), batches, mean_squared, recipes="FP8_TENSOR", progress=quiet)
    caches = {one.layer: one for one in diagnosis.alone if one.product == "product with a KV cache"}
    assert set(caches) == {"heads.attention.scores", "heads.attention.values"}
    lost = whole = 0.0
    for step in (1, 2):
        q, k = (
            diagnosis.recording.operands[step, "heads.attention", which].reshape(8, 32, 16)
            for which in ("query", "key")
        )
        for head in range(8):
            kept = np.asarray(fp.encode_scaled(np.ascontiguousarray(k[head]), "e4m3", fp.scalings.TENSOR))
            exact, stored = (q[head].astype(np.float64) @ keys.astype(np.float64).T for keys in (k[head], kept))
            lost, whole = lost + float(((stored - exact) ** 2).sum()), whole + float((exact**2).sum())
    scores = caches["heads.attention.scores"]
    assert scores.error == pytest.approx((lost / whole) ** 0.5, rel=1e-4)
    assert 8 < scores.bits < 8.1  # with a scale for each head's keys
    assert any(sentence.startswith("A KV cache in FP8_TENSOR fits: ") for sentence in diagnosis.sentences)
    strict = fp.analysis.diagnose(Heads(), batches[:1], mean_squared, recipes="FP8_TENSOR", limit=0.02, progress=quiet)
    assert any("A KV cache in FP8_TENSOR does not fit heads.attention." in sentence for sentence in strict.sentences)


def test_an_error_just_above_the_limit_is_not_printed_as_the_limit() -> None:
    assert relative(0.1026) == relative(0.1) == "10 %"
    for value, text in ((0.1026, "10.3 %"), (0.1003, "10.03 %"), (0.2, "20 %"), (0.09, "9 %"), (math.inf, "overflow")):
        assert relative_above(value, 0.1) == text
    assert relative_above(math.nextafter(0.1, 1), 0.1).startswith("10")


def test_a_recommendation_beyond_the_limit_names_what_is_less_off(tensor: Any) -> None:
    """It said that no other measured plan has less, though BF16 for all products had less."""
    plan, first = tensor.plan, tensor.plan.candidates[0]
    worse = dataclasses.replace(first, joint=first.joint._replace(value=0.5))
    made = dataclasses.replace(tensor, plan=dataclasses.replace(plan, candidates=(worse, *plan.candidates[1:])))
    least = min(row.gradient_error for row in tensor.sensitivity.joint)
    assert recommendation_sentences(made)[-1] == (
        f"That is more than the limit of 10 %; the least that was measured is {relative(least)}, with BF16 for all "
        "products."
    )
    alone = dataclasses.replace(made.sensitivity, joint=())
    made = dataclasses.replace(made, sensitivity=alone, plan=dataclasses.replace(plan, candidates=(worse,)))
    assert recommendation_sentences(made)[-1].endswith("10 %, but no other measured plan has clearly less.")


def test_a_rival_that_fits_everywhere_is_compared_with_what_was_measured(usual: Any) -> None:
    (said,) = rival_sentences(usual)
    rival = next(name for name in ("FP8_TENSOR", "DEEPSEEK_V3") if name != usual.low)
    assert said.startswith(f"{rival} fits everywhere too: its gradients are ")
    assert f"off, those of {usual.low} " in said
    first = next(i for i, verdict in enumerate(usual.verdicts) if verdict.recipe == usual.low)
    ill = dataclasses.replace(usual.verdicts[first], fits=False, why="its fprop is unknown")
    verdicts = (*usual.verdicts[:first], ill, *usual.verdicts[first + 1 :])
    (said,) = rival_sentences(dataclasses.replace(usual, verdicts=verdicts, limit=0.04))
    assert said.startswith(f"{rival} fits everywhere: its gradients are ")
    assert f"off (beyond the limit), those of {usual.low} where it fits and BF16 elsewhere " in said


def test_a_limit_below_the_rounding_of_bf16_is_said_to_be_that() -> None:
    said = diagnosed(*healthy(128, 128), recipes="FP8_RAW", limit=1e-4).answer
    assert "off, beyond the limit of 0.01 %: its products alone are off by up to 0.29 %, so use another limit." in said
