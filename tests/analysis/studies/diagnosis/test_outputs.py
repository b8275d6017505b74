"""Diagnoses without a loss: outputs alone are judged, with the figures of a diagnosis with one and no backward pass."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from fpsim.analysis.studies.diagnosis.budget_text import to_text
from fpsim.analysis.studies.diagnosis.recording import recorded_low
from tests.analysis.studies.diagnosis.models import INT8, diagnosed, healthy, nn, outlier, quiet, shrunk, torch
from tests.analysis.studies.sensitivity.models import Attention, Convolutional, state_of


def judged(model: Any, batches: Any, **options: Any) -> fp.analysis.Diagnosis:
    """Return a diagnosis without a loss."""
    return fp.analysis.diagnose(model, batches, **{"progress": quiet, **options})


@pytest.fixture(scope="module")
def usual() -> Any:
    return judged(*healthy())


@pytest.fixture(scope="module")
def tight() -> Any:
    """All products fit by themselves, and are too much at once."""
    return judged(*healthy(), recipes="FP8_TENSOR", limit=0.04)


def test_figures_are_those_of_a_diagnosis_with_a_loss(usual: Any) -> None:
    wanted = diagnosed(*healthy())
    assert [(one.layer, one.recipe) for one in usual.verdicts] == [
        (one.layer, one.recipe) for one in wanted.verdicts if one.product == "fprop"
    ]
    for one in usual.verdicts:
        other = wanted[one.layer, "fprop", one.recipe]
        assert (one.error, one.lines, one.bits, one.values) == (other.error, other.lines, other.bits, other.values)
        assert one.inherited == pytest.approx(other.inherited, rel=1e-5)
    forward = fp.analysis.sensitivity(*healthy(), recipes=list(usual.sensitivity.recipes))
    for mine, row in zip(usual.sensitivity.joint, forward.joint, strict=True):
        assert (mine.output_error, mine.output_spread) == (row.output_error, row.output_spread)
    assert usual.plan.measured == usual.sensitivity.measure(usual.plan.assignment).output_error
    assert {product for _, product in usual.plan.assignment} == {"fprop"}


def test_single_products_change_outputs_by_the_same_bits_without_a_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.Dropout(0.3), nn.Linear(64, 8)
    )
    batches = [torch.randn(64, 64) for _ in range(2)]
    diagnosis = fp.analysis.sensitivity(model, batches, recipes=["FP8_TENSOR", "BF16"])
    wanted = fp.analysis.sensitivity(
        model, batches, lambda model, x: model(x).square().mean(), recipes=["FP8_TENSOR", "BF16"], products="fprop"
    )
    for mine, row in zip(diagnosis.rows, wanted.rows, strict=True):
        names = ("layer", "recipe", "output_error", "output_spread", "output_cosine", "elements")
        assert [getattr(mine, name) for name in names] == [getattr(row, name) for name in names]
        assert math.isnan(mine.gradient_error)
        assert math.isnan(mine.loss_change)
    assert not diagnosis.has_loss
    assert "no loss, outputs alone" in str(diagnosis)
    assert diagnosis.ranking()[0].output_error == max(row.output_error for row in diagnosis.rows)
    with pytest.raises(ValueError, match="products must have 'fprop' without a loss"):
        fp.analysis.sensitivity(model, batches, recipes="BF16", products="wgrad")


def test_no_backward_pass_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a backward pass ran")

    for place, name in ((torch.Tensor, "backward"), (torch.autograd, "backward"), (torch.autograd, "grad")):
        monkeypatch.setattr(place, name, refuse)
    model, batches = healthy()
    with pytest.raises(AssertionError, match="a backward pass ran"):  # which the refusal sees
        diagnosed(model, batches, recipes="FP8_TENSOR")
    model.requires_grad_(False)
    before = state_of(model)
    assert judged(model, batches, recipes="FP8_TENSOR", limit=0.04).layers == ("0", "2", "4")
    assert state_of(model) == before


def test_nothing_is_said_of_gradients(usual: Any, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("jinja2")
    assert usual.sentences[-1] == "No loss was given: outputs alone were judged."
    assert "With all products in FP8_TENSOR at once, the outputs are 5.3 % off." in usual.sentences
    assert "gradient" not in usual.answer
    assert not [name for name in usual.to_frame().columns if "gradient" in name]
    assert usual.heads == ("layer", "fprop", "")
    assert "dgrad" not in str(usual).split("\n\n")[1].splitlines()[0]
    page = usual.page(tmp_path / "page.html").read_text()
    assert "error of outputs, all at once" in page
    assert "gradients off" not in page
    assert not [head for head in ("dgrad", "wgrad") if f">{head}<" in page]
    table = page[page.index('aria-label="Recipes"') :]
    assert table[: table.index("</table>")].count("<th ") == 5  # without a loss and its column


def test_products_are_measured_alone_only_where_all_at_once_are_too_much(usual: Any, tight: Any) -> None:
    assert all(math.isnan(one.output_error) for one in usual.verdicts)
    assert any(note.startswith("No product was measured alone in BF16, FP8_TENSOR and") for note in usual.notes)
    whole = usual.sensitivity.joint[1].output_error
    assert math.hypot(*(usual.plan[layer, "fprop"].value for layer in usual.layers)) == pytest.approx(whole)
    wanted = fp.analysis.sensitivity(*healthy(), recipes=["BF16", "FP8_TENSOR"])
    for one in tight.verdicts:
        assert one.output_error == wanted[one.layer, "fprop", one.recipe].output_error
    assert tight.plan.measured <= 0.04 < wanted.joint[1].output_error
    assert set(tight.plan.assignment.values()) == {"BF16", "FP8_TENSOR"}
    assert "With all products in FP8_TENSOR at once, the outputs are 5.3 % off, beyond the limit." in tight.sentences
    assert not any(note.startswith("No product was measured alone") for note in tight.notes)


class Twice(nn.Module):  # type: ignore[misc]
    """The difference of two products that nearly cancel, so that one layer alone changes it by much."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Any, y: Any) -> Any:
        return self.last(torch.relu(self.first(x) - self.first(y)))


def test_what_alone_changes_the_outputs_too_much_does_not_fit() -> None:
    torch.manual_seed(1)
    batches = [(x, x + 0.05 * torch.randn(64, 64)) for x in (torch.randn(64, 64) for _ in range(2))]
    diagnosis = judged(Twice(), batches, recipes="FP8_TENSOR")
    one = diagnosis["first", "fprop", "FP8_TENSOR"]
    assert one.error < 0.1 < one.output_error
    assert one.why.startswith("its fprop, off by 3.7 % itself, changes the model's outputs by")
    assert diagnosis.ill() == ("first",)
    assert diagnosis["last", "fprop", "FP8_TENSOR"].fits
    assert diagnosis.plan.assignment == {("first", "fprop"): "BF16", ("last", "fprop"): "FP8_TENSOR"}


def test_planted_layers_are_named_first_with_their_causes() -> None:
    raw = judged(*shrunk(), recipes="FP8_RAW")
    assert raw.sentences[0] == (
        "b cannot use FP8_RAW on H100 as it is: its fprop is off by 100 %, since without scales 100 % of its weight "
        "is below the smallest number of E4M3; keep it in BF16, where it is off by 0.3 %."
    )
    assert raw["c", "fprop", "FP8_RAW"].inherited > 0.5 > raw["c", "fprop", "FP8_RAW"].error
    int8 = judged(*outlier(), recipes={"INT8": INT8})
    assert "its input is rounded to INT8 while its largest value is" in int8.sentences[0]
    assert int8.plan.assignment["0", "fprop"] == "BF16"


def test_convolutions_and_attention_without_a_loss() -> None:
    torch.manual_seed(0)
    images = [(torch.randn(16, 3, 8, 8),) for _ in range(2)]
    diagnosis = judged(Convolutional(), images, recipes="FP8_TENSOR")
    assert diagnosis.layers == ("features.0", "hidden", "head")
    for layer in diagnosis.layers:
        budget = fp.analysis.budget(diagnosis.recording, recipe="FP8_TENSOR", layers=layer)
        assert diagnosis[layer, "fprop", "FP8_TENSOR"].error == budget.row(layer, "fprop").joint
    codes = [torch.randint(0, 16, (8, 12)) for _ in range(2)]
    diagnosis = judged(Attention(), codes, recipes="FP8_TENSOR")
    assert {one.layer for one in diagnosis.alone} == {"attention.scores", "attention.values"}
    budget = fp.analysis.budget(diagnosis.recording, recipe="FP8_TENSOR", layers="attention")
    for one in diagnosis.alone:
        if (one.recipe, one.product) == ("FP8_TENSOR", "fprop"):
            row = budget.row(one.layer, "fprop")
            assert (one.error, one.lines) == (row.joint, row.lines)


def test_the_same_call_goes_on_without_a_loss(tight: Any, tmp_path: Path) -> None:
    def stopped(share: float, text: str) -> None:
        if share > 0.7:
            raise KeyboardInterrupt

    options = {"recipes": "FP8_TENSOR", "limit": 0.04, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        judged(*healthy(), progress=stopped, **options)
    for _ in range(2):
        diagnosis = judged(*healthy(), **options)
        assert diagnosis.verdicts == tight.verdicts
        assert (diagnosis.plan.assignment, diagnosis.plan.measured) == (tight.plan.assignment, tight.plan.measured)
        assert diagnosis.answer == tight.answer
        for name, budget in tight.budgets.items():
            assert to_text(diagnosis.budgets[name]) == to_text(budget)  # NaN included
    with pytest.raises(ValueError, match="out must be a folder of results"):
        diagnosed(*healthy(), **options)


def test_models_that_return_no_floats_or_no_numbers_are_refused() -> None:
    model, batches = healthy(64, 64)

    class Wrong(nn.Module):  # type: ignore[misc]
        def __init__(self, change: Any) -> None:
            super().__init__()
            self.inner, self.change = model, change

        def forward(self, x: Any) -> Any:
            return self.change(self.inner(x))

    with pytest.raises(ValueError, match=r"model must return tensors of floats, .* Pass a loss"):
        judged(Wrong(lambda y: y.argmax(-1)), batches, recipes="BF16")
    with pytest.raises(ValueError, match=r"model must return finite values; for batches\[0\] it returned Inf or NaN"):
        judged(Wrong(lambda y: y / 0), batches, recipes="BF16")
    with pytest.raises(ValueError, match=r"batches must fit the model: model\(\*batch\) of a tuple or list"):
        judged(model, [(batches[0], batches[0])], recipes="BF16")


def test_batches_are_called_as_the_model_takes_them() -> None:
    torch.manual_seed(0)
    model = Twice()
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    by_place = judged(model, [(x, y)], recipes="FP8_TENSOR")
    by_name = judged(model, [{"x": x, "y": y}], recipes="FP8_TENSOR")
    assert by_place.verdicts == by_name.verdicts


class Encoder(nn.Module):  # type: ignore[misc]
    """Two blocks of attention, whose values or queries a planted scale makes large or small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.ModuleDict({name: nn.Linear(64, 64) for name in "qkvo"}) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            q, k, v = (block[name](x).view(*x.shape[:2], 4, 16).transpose(1, 2) for name in "qkv")
            mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = nn.functional.layer_norm(x + block["o"](mixed), (64,))
        return x

    def scaled(self, first: str, second: str, size: float) -> Encoder:
        """Multiply the output of a layer by a power of two, and divide another weight by it: the function stays."""
        with torch.no_grad():
            for parameter in self.blocks[0][first].parameters():
                parameter *= size
            self.blocks[0][second].weight /= size
            if second == "k":
                self.blocks[0][second].bias /= size
        return self


def words() -> list[Any]:
    torch.manual_seed(1)
    return [torch.randn(4, 32, 64) for _ in range(2)]


@pytest.mark.parametrize("diagnose", [judged, diagnosed])
def test_an_overflow_is_said_before_what_inherits_it_and_bf16_is_added(diagnose: Any) -> None:
    diagnosis = diagnose(Encoder().scaled("q", "k", 2.0**18), words(), recipes="FP16")
    assert diagnosis.sentences[0].startswith(
        "blocks.0.q cannot use FP16 on H100: its fprop overflows, since it reaches "
    )
    assert diagnosis.sentences[0].endswith(" and FP16 ends at 65,504.")
    assert diagnosis.sentences[1].startswith("attention.scores cannot use FP16 on H100: its fprop overflows, since ")
    assert "of its query is above the largest number of FP16" in diagnosis.sentences[1]
    assert set(diagnosis.plan.assignment.values()) == {"BF16"}
    assert any(note.startswith("BF16 was added, since values of up to ") for note in diagnosis.notes)


def test_the_origin_of_an_error_comes_before_what_inherits_more_than_it_adds() -> None:
    diagnosis = judged(Encoder().scaled("v", "o", 2.0**-7), words(), recipes="FP8_RAW")
    assert diagnosis.ill() == ("blocks.0.v", "blocks.0.o")
    origin, heir = (diagnosis[f"blocks.0.{name}", "fprop", "FP8_RAW"] for name in "vo")
    assert origin.inherited == 0 < 0.5 < origin.error
    assert heir.inherited > heir.error > 0.1
    assert diagnosis.sentences[0].startswith(
        "blocks.0.v cannot use FP8_RAW on H100 as it is: its fprop is off by 100 %"
    )
    assert diagnosis["blocks.1.v", "fprop", "FP8_RAW"].fits  # what it inherits is no fault of its own


def test_layers_judged_alone_are_kept_in_the_plan() -> None:
    diagnosis = judged(Encoder(), words(), recipes="FP8_TENSOR")
    assert diagnosis.plan.kept == ("attention",)
    assert "Kept exact, and not counted by the budget: attention." in str(diagnosis.plan)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_models_of_other_dtypes_inherit_what_a_budget_says(dtype: str) -> None:
    model, batches = healthy()
    kind = getattr(torch, dtype)
    model, batches = model.to(kind), [x.to(kind) for x in batches]
    diagnosis = judged(model, batches, recipes="FP8_TENSOR")
    recipe = diagnosis.sensitivity.recipes["FP8_TENSOR"]
    low = recorded_low(model, batches, None, 0, recipe, ["0", "2", "4"])
    budget = fp.analysis.budget(diagnosis.recording, recipe=recipe, on=None, arriving=low)
    for layer in diagnosis.layers:
        row, one = budget.row(layer, "fprop"), diagnosis[layer, "fprop", "FP8_TENSOR"]
        assert one.error == row.joint
        assert one.inherited == pytest.approx(row.inherited, rel=1e-2)


def test_sums_of_incomplete_blocks_are_judged_alike_with_and_without_a_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 50))
    batches = [torch.randn(33, 100) for _ in range(2)]
    diagnosis, wanted = (run(model, batches, recipes=["FP8_TENSOR", "DEEPSEEK_V3"]) for run in (judged, diagnosed))
    for one in diagnosis.verdicts:
        other = wanted[one.layer, "fprop", one.recipe]
        assert (one.fits, one.why) == (other.fits, other.why)
    assert diagnosis["0", "fprop", "DEEPSEEK_V3"].why.startswith("its fprop cannot be planned, since its 100 terms")
    assert [one.layer for one in diagnosis.verdicts if one.recipe == "DEEPSEEK_V3" and one.fits] == ["4"]
    assert diagnosis.low == wanted.low == "FP8_TENSOR"


class Experts(nn.Module):  # type: ignore[misc]
    """A layer of three experts, of which the last gets no tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.out = nn.Linear(64, 16)

    def forward(self, x: Any) -> Any:
        which = (x[:, 0] > 0).long()
        return self.out(torch.cat([expert(x[which == i]) for i, expert in enumerate(self.experts)]))


@pytest.mark.parametrize("run", [judged, diagnosed])
def test_an_expert_without_tokens_is_named_and_the_others_are_judged(run: Any) -> None:
    torch.manual_seed(0)
    diagnosis = run(Experts(), [torch.randn(64, 64) for _ in range(2)], recipes="FP8_TENSOR")
    assert diagnosis.layers == ("experts.0", "experts.1", "out")
    assert diagnosis.low == "FP8_TENSOR"
    notes = [note for note in diagnosis.notes if "experts.2" in note]
    assert notes == [
        "Called with empty inputs, and therefore without rows: experts.2.",
        "Not diagnosed, since its inputs are empty: experts.2.",
    ]
    with pytest.raises(ValueError, match=r"batches must have values; all chosen layers were called with empty inputs"):
        fp.analysis.sensitivity(
            nn.Sequential(nn.Linear(4, 4)), [torch.ones(0, 4)], lambda model, x: model(x).sum(), recipes="BF16"
        )


@pytest.mark.parametrize("run", [judged, diagnosed])
def test_an_expert_with_tokens_in_the_second_batch_alone_has_rows(run: Any) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(64, 64) for _ in range(2)]
    batches[0][:, 0].abs_()
    diagnosis = run(Experts(), batches, recipes="FP8_TENSOR")
    assert diagnosis["experts.0", "fprop", "FP8_TENSOR"].fits
    assert 0.02 < diagnosis["experts.0", "fprop", "FP8_TENSOR"].error < 0.05


def test_frozen_layers_are_judged_by_their_forward_products() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model[0].requires_grad_(False)
    batches = [torch.randn(64, 64) for _ in range(2)]
    diagnosis = diagnosed(model, batches, recipes="FP8_TENSOR")
    forward = judged(model, batches, recipes="FP8_TENSOR")
    one, other = (report["0", "fprop", "FP8_TENSOR"] for report in (diagnosis, forward))
    assert one.error == other.error
    assert one.gradient_error > 0.01
    assert diagnosis.coverage.weights == 1
    assert {verdict.product for verdict in diagnosis.verdicts if verdict.layer == "0"} == {"fprop"}
    row = diagnosis.sensitivity["0", "fprop", "FP8_TENSOR"]
    assert math.isnan(row.first_order)
    assert row.loss_change != 0
    assert not [note for note in diagnosis.notes if note.startswith("Not called")]


def test_the_reason_names_the_values_that_cause_the_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    batches = [torch.randn(64, 64) for _ in range(2)]
    for x in batches:
        x[:, 7] *= 1e4  # 1 in 64 values saturates, while 12 % of the weights are subnormal
    why = judged(model, batches, recipes="FP8_RAW")["0", "fprop", "FP8_RAW"].why
    share = float((batches[0].abs() > 448).float().mean())
    assert why.endswith(f"since without scales {100 * share:.2g} % of its input is above the largest number of E4M3")


def test_notes_without_a_loss_name_no_backward_products() -> None:
    notes = {run: run(*healthy(), recipes={"INT8": INT8}).notes for run in (judged, diagnosed)}
    assert [note for note in notes[diagnosed] if "dgrad in INT8" in note]
    assert [note for note in notes[judged] if note.endswith(": fprop in INT8.")]
    assert not [note for note in notes[judged] if "dgrad" in note or "wgrad" in note]
