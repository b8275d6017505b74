"""AdamW in low precision: torch's bits in float32, and what updates come to in small formats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal

torch = pytest.importorskip("torch")

from fpsim.train import OptimizerRecipe  # noqa: E402
from fpsim.train.optimizer import AdamW, StepReport  # noqa: E402
from fpsim.train.updates import draw_key  # noqa: E402
from tests.kit.sweeps import in_turn  # noqa: E402

Tensors = dict[str, Any]
LOW = OptimizerRecipe(
    first_moment="bf16", second_moment="e5m2", moment_rounding="stochastic", weights="bf16", masters=False,
    update_rounding="kahan", weight_decay=0.1, warmup=3, schedule="cosine", seed=5,
)  # fmt: skip


def weights() -> Tensors:
    """Two matrices and a vector, drawn anew."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"up": (33, 17), "gain": (17,), "down": (64, 32)}
    return {name: torch.randn(shape, generator=generator) * 0.05 for name, shape in shapes.items()}


def gradients(step: int) -> Tensors:
    """Those of a step: of all sizes, some zero."""
    generator = torch.Generator().manual_seed(step + 1)
    drawn = {name: torch.randn(x.shape, generator=generator) for name, x in weights().items()}
    return {name: x * (x.abs() > 0.2) * 10.0 ** (step % 5 - 3) for name, x in drawn.items()}


def trained(recipe: OptimizerRecipe, steps: int) -> tuple[Tensors, AdamW, list[StepReport]]:
    """Weights after so many steps, their optimizer and its reports."""
    got = weights()
    optimizer = AdamW(got, recipe)
    return got, optimizer, [optimizer.step(gradients(i), steps_total=steps) for i in range(steps)]


# ---- float32


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [None, 1.0, 0.3])
def test_in_float32_the_bits_are_torchs(decay: float, clip: float | None) -> None:
    recipe = OptimizerRecipe(weight_decay=decay, clip_norm=clip, warmup=10, schedule="cosine", final_lr_share=0.1)
    ours, theirs = weights(), {name: x.requires_grad_() for name, x in weights().items()}
    matrices = [x for x in theirs.values() if x.dim() >= 2]
    vectors = [x for x in theirs.values() if x.dim() < 2]
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=recipe.betas, eps=recipe.eps, foreach=False, fused=False,
    )  # fmt: skip
    optimizer = AdamW(ours, recipe, "torch")
    for step in range(50):
        for name, gradient in gradients(step).items():
            theirs[name].grad = gradient
        for group in reference.param_groups:
            group["lr"] = recipe.lr_at(step, 50)
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), clip) if clip else None
        reference.step()
        report = optimizer.step(gradients(step), steps_total=50)
        assert norm is None or report.gradient_norm == float(norm)
        for name in ours:
            assert_bits_equal(ours[name], theirs[name].detach())


def test_a_step_clips_and_then_updates() -> None:
    recipe = OptimizerRecipe(clip_norm=0.5, clip_value=0.1, warmup=3, schedule="cosine", weight_decay=0.1)
    wanted, _, reports = trained(recipe, 4)
    got = weights()
    optimizer = AdamW(got, recipe)
    for step, report in enumerate(reports):
        some = gradients(step)
        lr = optimizer.learning_rate(4)
        clipping = optimizer.clip(some)
        assert optimizer.update(some, clipping, lr) == report
        assert (clipping.norm, clipping.factor) == (report.gradient_norm, report.clip_factor)
        assert optimizer.norm(list(some.values())) <= 0.5
    assert {report.clip_factor < 1 for report in reports} == {False, True}
    assert {report.clipped_share > 0 for report in reports} == {False, True}
    for name, weight in got.items():
        assert_bits_equal(weight.numpy(), wanted[name].numpy())


def test_clipping_by_value_is_torchs_and_counted() -> None:
    optimizer = AdamW(found := weights(), OptimizerRecipe(clip_value=0.5, clip_norm=None))
    slopes = {name: torch.full_like(x, 0.25) for name, x in found.items()}
    slopes["gain"][:] = -3.0
    report = optimizer.step(slopes, steps_total=1)
    assert slopes["gain"].tolist() == [-0.5] * 17
    assert report.clipped_share == 17 / sum(x.numel() for x in found.values())
    assert report.clip_factor == 1.0


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    recipe = OptimizerRecipe(lr=1.0, warmup=4, schedule="cosine", final_lr_share=0.1)
    rates = [recipe.lr_at(step, 104) for step in range(104)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[54] == pytest.approx(0.55)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert recipe.lr_at(104, 104) == recipe.lr_at(500, 104) == pytest.approx(0.1)
    assert trained(recipe, 3)[2][2].lr == 0.75


def test_the_learning_rate_follows_an_error_where_it_is_told_to() -> None:
    optimizer = AdamW(weights(), OptimizerRecipe(lr=1.0, lr_follows_error=10.0))
    assert optimizer.step(gradients(0), steps_total=9, weight_error=0.1).lr == 0.5
    with pytest.raises(ValueError, match=r"lr_follows_error=10.0 needs weight_error, the error to follow; got None\."):
        optimizer.step(gradients(1), steps_total=9)


# ---- small formats


def test_nearest_loses_most_small_updates_and_stochastic_and_kahan_almost_none() -> None:
    reports = {how: trained(bf16_weights(how), 20)[2] for how in ("nearest_even", "stochastic", "kahan")}
    share = {how: sum(r.lost for r in rows) / sum(r.updates for r in rows) for how, rows in reports.items()}
    assert share["nearest_even"] > 0.7
    assert share["stochastic"] == 0
    assert share["kahan"] < 0.05
    assert all(r.unchanged > r.lost for r in reports["stochastic"])


def bf16_weights(rounding: str) -> OptimizerRecipe:
    """BF16 weights without masters."""
    return OptimizerRecipe(lr=3e-5, weights="bf16", masters=False, update_rounding=rounding)


def test_masters_lose_nothing_that_their_rounded_copies_do_not_show() -> None:
    found, optimizer, reports = trained(OptimizerRecipe(lr=3e-5, weights="bf16"), 5)
    masters = {name: x for name, x in optimizer.state()[0].items() if name.startswith("weights/")}
    plain, _, _ = trained(OptimizerRecipe(lr=3e-5), 5)
    assert sum(r.lost for r in reports) == 0
    for name, x in found.items():
        assert_bits_equal(masters[f"weights/{name}"], plain[name].numpy())
        assert_bits_equal(x.numpy(), fp.quantize(plain[name].numpy(), "bf16"))


def test_weight_decay_below_half_an_ulp_never_decays_anything() -> None:
    """lr * decay = 3e-6, of which BF16 sees nothing."""
    found = {"w": torch.linspace(0.5, 1.0, 256).reshape(16, 16)}
    optimizer = AdamW(found, OptimizerRecipe(lr=3e-5, weight_decay=0.1, weights="bf16", masters=False))
    before = found["w"].clone()
    reports = [optimizer.step({"w": torch.zeros(16, 16)}, steps_total=100) for _ in range(100)]
    assert_bits_equal(found["w"], before)
    assert all(r.updates == r.lost == 256 and r.lost_share == 1 for r in reports)
    assert reports[0].update_ratio == 2.0**-19  # the power of two below 3e-6


def test_moments_wait_in_their_formats() -> None:
    state = trained(LOW, 4)[1].state()[0]
    for name, fmt in (("first_moment", "bf16"), ("second_moment", "e5m2"), ("weights", "bf16")):
        for parameter in weights():
            x = state[f"{name}/{parameter}"]
            assert_bits_equal(x, fp.quantize(x, fmt))
            assert np.count_nonzero(x) > x.size / 2


def test_draws_differ_by_seed_name_quantity_and_step() -> None:
    keys = {
        draw_key(*key)
        for key in [(0, "a", "w", 0), (1, "a", "w", 0), (0, "b", "w", 0), (0, "a", "m", 0), (0, "a", "w", 1)]
    }
    assert len(keys) == 5
    assert_bits_equal(trained(LOW, 3)[0]["down"], trained(LOW, 3)[0]["down"])
    threads = torch.get_num_threads()
    one = bf16_weights("stochastic")
    try:
        torch.set_num_threads(1)
        first = trained(one, 3)[0]["down"]
        torch.set_num_threads(2)
        assert_bits_equal(trained(one, 3)[0]["down"], first)
    finally:
        torch.set_num_threads(threads)


def test_moments_and_weights_that_overflow_are_named() -> None:
    optimizer = AdamW(weights(), OptimizerRecipe(second_moment="fp16", clip_norm=None))
    report = optimizer.step({name: torch.full_like(x, 3e5) for name, x in weights().items()}, steps_total=1)
    assert report.nonfinite == tuple(f"second_moment/{name}" for name in weights())
    slopes = gradients(0)
    slopes["up"][0, 0] = math.nan
    report = AdamW(weights(), OptimizerRecipe(clip_norm=None)).step(slopes, steps_total=1)
    assert report.nonfinite == ("weights/up", "first_moment/up", "second_moment/up")
    assert trained(LOW, 2)[2][1].nonfinite == ()


# ---- going on, and refusals


@pytest.mark.parametrize("recipe", [LOW, OptimizerRecipe(), OptimizerRecipe(weights="bf16", first_moment="bf16")])
def test_a_loaded_state_goes_on_with_the_same_bits(recipe: OptimizerRecipe) -> None:
    whole, halfway = weights(), weights()
    one, two = AdamW(whole, recipe), AdamW(halfway, recipe)
    for step in range(3):
        one.step(gradients(step), steps_total=6)
        two.step(gradients(step), steps_total=6)
    later = {name: torch.zeros_like(x) for name, x in whole.items()}
    resumed = AdamW(later, recipe)
    resumed.load(*two.state())
    for step in range(3, 6):
        assert one.step(gradients(step), steps_total=6) == resumed.step(gradients(step), steps_total=6)
    for name in whole:
        assert_bits_equal(later[name], whole[name])
    for name, x in one.state()[0].items():
        assert_bits_equal(resumed.state()[0][name], x)


def test_a_state_that_does_not_fit_is_refused_and_nothing_changes() -> None:
    arrays, facts = trained(LOW, 2)[1].state()
    with pytest.raises(
        ValueError, match=r"facts\['weights'\] must be 'FP32', as in this optimizer's recipe; got 'BF16'"
    ):
        AdamW(weights(), OptimizerRecipe()).load(arrays, facts)
    optimizer = AdamW(found := weights(), LOW)
    before = found["up"].clone()
    wrong = {**arrays, "weights/up": np.zeros((3, 3), np.float32)}
    with pytest.raises(ValueError, match=r"arrays\['weights/up'\] must be float32 of shape \(33, 17\); got float32 of"):
        optimizer.load(wrong, facts)
    del wrong["weights/up"]
    with pytest.raises(ValueError, match=r"it lacks 'weights/up'"):
        optimizer.load(wrong, facts)
    assert_bits_equal(found["up"], before)


@in_turn(
    "fields, message",
    [
        ({"lr": -1.0}, r"lr must be a finite number >= 0; got -1\.0\."),
        ({"lr": "fast"}, "lr must be a number; got 'fast'"),
        ({"eps": math.nan}, "eps must be a finite number"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers >= 0 and < 1, such as \(0\.9, 0\.95\); got \(0\.9, 1\.0\)"),
        ({"betas": 0.9}, "betas must be two numbers"),
        ({"warmup": -1}, "warmup must be an integer >= 0"),
        ({"schedule": "cosin"}, "schedule must be one of constant, cosine; got 'cosin'. Did you mean 'cosine'"),
        ({"final_lr_share": 1.5}, "final_lr_share must be a finite number >= 0 up to 1"),
        ({"clip_norm": 0.0}, "clip_norm must be a finite number > 0"),
        ({"first_moment": "bf17"}, "bf17"),
        ({"first_moment": "e8m0"}, "first_moment needs a format with a zero and a sign; got E8M0"),
        ({"weights": "fp64"}, "float32 cannot hold"),
        ({"masters": 1}, "masters must be True or False; got 1"),
        ({"update_rounding": "up"}, "update_rounding must be one of nearest_even, stochastic, kahan"),
        ({"update_rounding": "kahan"}, "needs weights in a small format and masters=False"),
        ({"update_rounding": "kahan", "weights": "fp32", "masters": False}, "got weights='fp32' and masters=False"),
        ({"moment_rounding": "maybe"}, "maybe"),
        ({"seed": 0.5}, "seed must be an integer"),
    ],
)  # fmt: skip
def test_each_field_is_checked_in_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as found:
        OptimizerRecipe(**fields)
    assert "\n" not in str(found.value)


def test_other_gradients_and_weights_are_refused() -> None:
    optimizer = AdamW(weights(), OptimizerRecipe())
    slopes = gradients(0)
    with pytest.raises(ValueError, match=r"gradients\['up'\] must be float32 of shape \(33, 17\); got torch.float64"):
        optimizer.step({**slopes, "up": slopes["up"].double()}, steps_total=1)
    with pytest.raises(ValueError, match="gradients must have the names of the weights and no others; it has 'left'"):
        optimizer.step({**slopes, "left": slopes["up"]}, steps_total=1)
    with pytest.raises(TypeError, match=r"gradients\['up'\] must be a torch tensor; got an array of float32"):
        optimizer.step({**slopes, "up": slopes["up"].numpy()}, steps_total=1)
    with pytest.raises(ValueError, match=r"weights\['w'\] must be a contiguous float32 tensor on the CPU"):
        AdamW({"w": torch.zeros(3, 4).T}, OptimizerRecipe())
    with pytest.raises(TypeError, match="recipe must be an OptimizerRecipe; got 'adam'"):
        AdamW({}, "adam")  # type: ignore[arg-type]
