"""The training loop: whose bits its products have, what follows which recipe, and where it stops."""

import importlib
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.recipes.parts import Controller, Override
from fpsim.recipes.training_recipe import Recipe
from fpsim.testing import assert_bits_equal
from fpsim.torch.trace import watching
from fpsim.train import recipes

torch = pytest.importorskip("torch")
from fpsim.train import OptimizerRecipe, Settings, Trainer  # noqa: E402
from fpsim.train.layers import seeded  # noqa: E402
from fpsim.train.model import loss_of  # noqa: E402
from fpsim.train.operations import kernels  # noqa: E402
from fpsim.train.ranks import reduce  # noqa: E402

RAW = fp.torch.LinearRecipe(grad_fmt="e4m3", overflow="saturate", name="RAW")  # one format, so that few things differ


RAW_BELOW_THE_HEAD = recipes.FP8_RAW.replace(keep=("head",))


def trainer(recipe: Any, steps: int = 4, model: str = "perceptron", **settings: Any) -> Any:
    settings.setdefault("measure", 0)
    settings.setdefault("batch", 128 if model == "perceptron" else 2)
    return Trainer(recipe, Settings(steps=steps, model=model, **settings))


def seen(run: Any) -> dict[tuple[str, str], Any]:
    """The products of the next step."""
    calls: list[Any] = []
    with watching(calls.append):
        run.step()
    assert len({(call.layer, call.product) for call in calls}) == len(calls)
    return {(call.layer, call.product): call for call in calls}


def by_hand(call: Any, linear: Any) -> Any:
    """A product of a recipe with the public functions alone, from what was cast."""
    product, turned = getattr(linear, call.product), call.product == "wgrad"
    names = {"fprop": ("input", "weight"), "dgrad": ("grad", "weight"), "wgrad": ("grad", "input")}[call.product]
    operands = []
    for side, name, operand in zip("ab", names, (call.a, call.b), strict=True):
        fmt, source = getattr(linear, f"{name}_fmt"), operand.source.T if (side == "a") == turned else operand.source
        if side == "b" and call.product == "fprop":
            source = operand.source.T  # the weight as it lies
        elif side == "b":
            source = operand.source
        scaling = getattr(linear, f"{name}_scaling")
        backward = getattr(linear, f"{name}_scaling_backward")
        if (call.product, name) in (("dgrad", "weight"), ("wgrad", "grad"), ("wgrad", "input")) and backward != "same":
            scaling = backward
        codes: Any
        if scaling is None:
            codes = fp.encode(source, fmt, overflow=linear.overflow or "nonfinite")
        else:
            codes = fp.encode_scaled(source, fmt, scaling)
        flip = (side == "a" and turned) or (side == "b" and call.product == "fprop")
        operands.append(codes.transpose() if flip and scaling is not None else codes.T if flip else codes)
    got = fp.matmul(
        *operands, accumulate=linear.accumulator(call.product), schedule=product.schedule, promote=product.promote,
        out_fmt=product.out_fmt,
    )  # fmt: skip
    return fp.decode(got, product.out_fmt) if got.dtype == np.uint16 else np.asarray(got, np.float32)


@pytest.mark.parametrize("name", ["BF16", "FP8_RAW", "FP8_TENSOR", "DEEPSEEK_V3", "MXFP8"])
def test_products_of_a_step_are_those_of_matmul_called_by_hand(name: str) -> None:
    calls = seen(trainer(recipes.ROWS[name]))
    assert ("first", "wgrad") in calls
    assert ("first", "dgrad") not in calls  # of the inputs, which nobody asks for
    for product in ("fprop", "dgrad", "wgrad"):
        call = calls["second", product]
        assert_bits_equal(call.result, by_hand(call, fp.torch.RECIPES[name]))


def test_products_of_a_switched_step_are_those_of_the_other_recipe() -> None:
    switched = recipes.DEEPSEEK_V3.replace(overrides=(Override("second", ("fprop", "wgrad"), 0.5, linear="BF16"),))
    run = trainer(switched, steps=3)
    for step in range(3):
        calls = seen(run)
        for product in ("fprop", "dgrad", "wgrad"):
            bf16 = step >= 2 and product != "dgrad"
            call = calls["second", product]
            assert_bits_equal(call.result, by_hand(call, fp.torch.RECIPES["BF16" if bf16 else "DEEPSEEK_V3"]))


LOSING = Controller(high=0.5, low=0.1, patience=2, levels=("BF16", "FP32"), layers="second")


def test_products_behind_a_move_are_those_of_the_next_level() -> None:
    """Gradients of 2^-12 of a batch underflow in raw E4M3, and would still: so nothing comes back."""
    run = trainer(RAW_BELOW_THE_HEAD.replace(controller=LOSING, loss_factor=2.0**-9), steps=6)
    names: list[str] = []
    for _ in range(6):
        calls = seen(run)
        name = "BF16" if run.levels.levels["second"] and len(names) >= 2 else "FP8_RAW"
        names.append(name)
        for product in ("fprop", "dgrad", "wgrad"):
            call = calls["second", product]
            assert_bits_equal(call.result, by_hand(call, fp.torch.RECIPES[name]))
    assert names == ["FP8_RAW"] * 2 + ["BF16"] * 4
    assert [(change.step, change.before, change.after) for change in run.levels.log] == [(1, 0, 1)]
    assert run.levels.log[0].figure > 0.5


def test_a_controller_leaves_kept_layers_alone() -> None:
    run = trainer(RAW_BELOW_THE_HEAD.replace(controller=Controller(levels=("BF16",))))
    assert list(run.levels.levels) == ["first", "second"]


def test_a_controller_sees_gradients_before_they_are_clipped() -> None:
    """Clipping gives all steps the same norm, and its controller nothing to see."""
    norms = []
    for clip in (None, 1e-3):
        rule = Controller("gradient_norm", 2.0, 0.5)
        run = trainer(Recipe(linear=RAW, controller=rule, optimizer=OptimizerRecipe(clip_norm=clip)))
        run.step()
        norms.append(dict(run.levels.state()["norms"]))
    assert norms[0] == norms[1]
    assert norms[0]["second"] > 0.1


def test_layers_of_unit_scaling_have_the_names_that_recipes_give_them() -> None:
    rule = Controller(high=0.9, low=0.8, patience=1, layers="*.mlp.*")
    run = trainer(recipes.UNIT_SCALING.replace(controller=rule), model="transformer", measure=1, context=64)
    run.step()
    names = {row["layer"] for row in run.measured}
    parts = ("attn.qkv", "attn.proj", "mlp.gate_up", "mlp.down")
    assert names == {f"blocks.{index}.{part}" for index in (0, 1) for part in parts}
    assert not run.levels.log  # of layers by other names the figures are NaN, which is too high


def test_the_validation_loss_is_that_of_the_last_steps_recipes() -> None:
    last = recipes.FP8_TENSOR.replace(overrides=(Override(start=0.5, linear="FP32"),))
    run = trainer(last, steps=2)
    for _ in range(2):
        run.step()
    calls: list[Any] = []
    with watching(calls.append):
        loss = run.validation_loss()
    assert {call.how.accumulator for call in calls} == {"FusedMultiplyAdd(FP32)"}
    assert loss == run.validation_loss()


def test_measurements_are_of_every_operand_every_few_steps() -> None:
    run = trainer(RAW_BELOW_THE_HEAD, steps=5, measure=2)
    for _ in range(5):
        run.step()
    assert {row["step"] for row in run.measured} == {0, 2, 4}
    assert len(run.measured) == 3 * 2 * 5
    assert set(run.measured[0]) == {
        "step",
        "layer",
        "product",
        "operand",
        "underflow",
        "saturation",
        "at_maximum",
        "sqnr_db",
    }


# ---- seeds


def bits(run: Any, steps: int = 2) -> dict[str, bytes]:
    for _ in range(steps):
        run.step()
    return {name: array.tobytes() for name, array in run.state()[0].items()}


def test_a_step_that_was_interrupted_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    run, twin = trainer(recipes.BF16), trainer(recipes.BF16)
    before = run.state()
    with monkeypatch.context() as patch:
        patch.setattr(run.optimizer, "update", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.step()
    with pytest.raises(RuntimeError, match="step 0 was not finished: load the state from before it"):
        run.step()
    run.load(*before)
    assert run.step()["digest"] == twin.step()["digest"]


def test_the_same_seed_gives_the_same_bits_and_another_one_others() -> None:
    recipe = recipes.NVFP4.replace(optimizer=OptimizerRecipe(first_moment="bf16", moment_rounding="stochastic"))
    one, same, other = (bits(trainer(recipe, seed=seed)) for seed in (1, 1, 2))
    assert one == same
    assert not [name for name in one if one[name] == other[name] and not name.endswith("steps")]


def test_draws_of_products_and_of_the_optimizer_follow_the_seed_of_the_run() -> None:
    assert seeded(fp.torch.NVFP4, 0) is fp.torch.NVFP4
    assert seeded(fp.torch.NVFP4, 1) != seeded(fp.torch.NVFP4, 2)
    assert seeded(fp.torch.DEEPSEEK_V3, 1) is fp.torch.DEEPSEEK_V3
    drawn = OptimizerRecipe(weights="bf16", masters=False, update_rounding="stochastic")
    recipe = Recipe(optimizer=drawn)
    assert len({trainer(recipe, seed=seed).optimizer.recipe.seed for seed in range(3)}) == 3


def test_bits_do_not_depend_on_the_threads_of_torch() -> None:
    """The head of the perceptron, 10 columns, has other sums on two threads than on one."""
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(bits(trainer(recipes.FP32)))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]


def test_micro_batches_are_averaged_as_processes_would() -> None:
    recipe = recipes.BF16.replace(reduction="bf16", optimizer=OptimizerRecipe(clip_norm=None))
    run = trainer(recipe, batch=64, micro_batches=2)
    weights = {name: weight.detach().clone() for name, weight in run.weights.items()}
    run.validation_loss()  # after which the layers follow their recipes
    parts = []
    for micro in range(2):
        inputs, targets = (torch.from_numpy(x) for x in run.data.batch(0, 0, micro, batch=64, context=64))
        run.model.zero_grad()
        loss: Any = loss_of(run.model, inputs, targets, run.model.operations)
        loss.backward()
        parts.append({name: weight.grad for name, weight in run.weights.items()})
    wanted = reduce(parts, "bf16")
    plain = fp.train.optimizer.AdamW(weights, recipe.optimizer)
    plain.step(wanted, steps_total=4)
    row = run.step()
    for name, weight in run.weights.items():
        assert_bits_equal(weight.detach().numpy(), weights[name].numpy())
    norm = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    assert row["gradient_norm"] == pytest.approx(float(norm), rel=1e-6)


def test_a_loss_factor_changes_no_bit_where_nothing_underflows() -> None:
    one, other = (trainer(recipes.DEEPSEEK_V3.replace(loss_factor=factor)) for factor in (1.0, 2.0**-8))
    assert bits(one) == bits(other)


def test_scaled_losses_change_no_bit_where_nothing_underflows() -> None:
    one, other = (trainer(recipes.BF16.replace(loss_scaling=policy)) for policy in ("none", "dynamic"))
    assert bits(one) == bits(other)
    assert [row["scale"] for row in other.rows] == [65536.0] * 2


@pytest.mark.parametrize(("recipe", "times"), [("FP16_DYNAMIC", 1), ("norm_driven", 2)])
def test_squares_of_gradients_are_summed_once_unless_the_loss_scale_follows_them(
    recipe: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = kernels.sum_of_squares

    def counted(x: Any, chunks: Any) -> Any:
        sizes.append(x.size)
        return original(x, chunks)

    monkeypatch.setattr(kernels, "sum_of_squares", counted)
    chosen = recipes.FP16_DYNAMIC if times == 1 else recipes.FP16_DYNAMIC.replace(loss_scaling=recipe)
    run = trainer(chosen)
    run.step()
    assert sizes == [weight.numel() for weight in run.weights.values()] * times


def test_the_learning_rate_can_follow_the_error_of_the_weights() -> None:
    rates = []
    for linear in ("FP32", "BF16", "NVFP4", fp.torch.LinearRecipe(weight_fmt="e4m3", rounding="stochastic")):
        layers = Recipe(linear=linear, optimizer=OptimizerRecipe(lr=1e-3, lr_follows_error=10.0))
        rates.append(trainer(layers).step()["lr"])
    assert rates[0] == 1e-3
    assert rates[0] > rates[1] > rates[3] > rates[2]


# ---- products that draw, are transformed or follow earlier steps, by hand

mixing: Any = importlib.import_module("fpsim.torch.hadamard")


NVFP4 = fp.scalings.NVFP4


FP4: dict[str, Any] = {"accumulate": "blackwell_nvfp4_f32"}


FP8: dict[str, Any] = {"accumulate": "hopper_e4m3_f32"}


HYBRID: dict[str, Any] = {"accumulate": "hopper_e5m2xe4m3_f32", "promote": 128}


LAYER = "blocks.1.mlp.down"


def calls_of(run: Any, layer: str) -> dict[str, list[Any]]:
    """The products of a layer in the next step, those of each micro-batch."""
    calls: list[Any] = []
    with watching(calls.append):
        run.step()
    return {
        name: [call for call in calls if (call.layer, call.product) == (layer, name)]
        for name in ("fprop", "dgrad", "wgrad")
    }


def spread(w: Any) -> Any:
    """A matrix in 16x16 blocks as rows of 1x16: a scale of its own for each."""
    rows: dict[str, Any] = {name: np.repeat(getattr(w, name), 16, axis=0) for name in ("scales", "scale_codes")}
    return fp.Scaled(w.codes, fmt=w.fmt, scaling=NVFP4, tensor_scale=w.tensor_scale, **rows)


def squares(w: Any) -> Any:
    return spread(fp.encode_scaled(np.ascontiguousarray(w), "e2m1", NVFP4.replace(block=(16, 16)))).transpose()


def rounded(codes: Any) -> Any:
    return np.asarray(codes).astype(np.float32)


def test_nvfp4_draws_anew_in_every_step() -> None:
    run = Trainer(recipes.NVFP4, Settings(steps=2, batch=2, measure=0))
    plan = importlib.import_module("fpsim.torch.plan").plan_of(recipes.NVFP4.linear, LAYER)
    columns = NVFP4.transposed()
    for step in range(2):
        calls = {name: found[0] for name, found in calls_of(run, LAYER).items()}
        x, dy, weight = calls["fprop"].a.source, calls["dgrad"].a.source, calls["dgrad"].b.source
        want = fp.matmul(fp.encode_scaled(x, "e2m1", NVFP4), squares(weight), out_fmt="bf16", **FP4)
        assert_bits_equal(calls["fprop"].result, rounded(want))
        draws: dict[str, Any] = {"rounding": "stochastic", "seed": plan.grad.key + step}
        qdy = fp.encode_scaled(dy, "e2m1", NVFP4, **draws)
        assert_bits_equal(calls["dgrad"].result, rounded(fp.matmul(qdy, squares(weight.T), out_fmt="bf16", **FP4)))
        draws["seed"] = plan.grad_backward.key + step
        left = fp.encode_scaled(mixing.hadamard(dy, 16, plan.signs), "e2m1", columns, **draws).transpose()
        right = fp.encode_scaled(mixing.hadamard(x, 16, plan.signs), "e2m1", columns)
        assert_bits_equal(calls["wgrad"].result, fp.matmul(left, right, **FP4))


def test_delayed_scales_follow_the_steps_before() -> None:
    run = Trainer(recipes.FP8_DELAYED, Settings(steps=4, model="perceptron", batch=128, measure=0))
    states = [fp.DelayedScaling(fmt, history=16) for fmt in ("e4m3", "e4m3", "e5m2")]
    for _ in range(4):
        calls = {name: found[0] for name, found in calls_of(run, "second").items()}
        sources = calls["fprop"].a.source, calls["dgrad"].b.source, calls["dgrad"].a.source
        x, weight, dy = (
            state.encode(np.ascontiguousarray(each)) for state, each in zip(states, sources, strict=True)
        )  # fmt: skip
        want = fp.matmul(x, weight.transpose(), out_fmt="bf16", **FP8)
        assert_bits_equal(calls["fprop"].result, rounded(want))
        assert_bits_equal(calls["dgrad"].result, rounded(fp.matmul(dy, weight, out_fmt="bf16", **HYBRID)))
        assert_bits_equal(calls["wgrad"].result, fp.matmul(dy.transpose(), x, **HYBRID))


def test_delayed_scales_move_once_a_step_by_the_largest_amax_of_its_micro_batches() -> None:
    run = Trainer(recipes.FP8_DELAYED, Settings(steps=3, model="perceptron", batch=64, micro_batches=3, measure=0))
    states = [fp.DelayedScaling(fmt, history=16) for fmt in ("e4m3", "e5m2")]
    for _ in range(3):
        calls = calls_of(run, "second")
        for state, product, row in zip(states, ("fprop", "dgrad"), (0, 2), strict=True):
            parts = [call.a for call in calls[product]]
            assert len({float(part.encoded.scales.item()) for part in parts}) == 1
            largest = max(parts, key=lambda part: float(np.abs(part.source).max()))
            want = state.encode(np.ascontiguousarray(largest.source))
            assert_bits_equal(largest.encoded.scales, want.scales)
            arrays, scales = state.state_dict(), run.layers["second"].scales
            assert scales is not None
            assert scales[row, 0] == arrays["encode_scales"].item()
            assert scales[row, 1:].tolist() == arrays["amax_history"].ravel().tolist()


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"model": "perceptron", "batch": 10**9}, "batch=1000000000 needs more than 512 GB .* 16 GB"),
        ({"model": "perceptron", "batch": 10**30}, "needs more than 5.12e.14 EB"),
        ({"batch": 10**7}, "batch=10000000, context=64 and width=128 needs more than 328 GB"),
        ({"width": 128 * 1000}, "width=128000 needs more than 1.31 TB"),
    ],
)
def test_what_memory_cannot_hold_is_refused_at_once(
    settings: dict[str, Any], wanted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:   14000000 kB\nMemFree:  5 kB\nSwapTotal:  1625000 kB\n")
    monkeypatch.setattr("fpsim.train.settings.MEMORY", tmp_path / "meminfo")
    with pytest.raises(ValueError, match=wanted):
        fp.train.run(recipes.FP32, steps=1, **settings)
    monkeypatch.setattr("fpsim.train.settings.MEMORY", tmp_path / "none")  # another system: nothing is certain
    Trainer(recipes.FP32, Settings(model="perceptron"))
