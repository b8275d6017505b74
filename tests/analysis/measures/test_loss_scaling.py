"""fpsim.analysis.loss_scaling, beside torch.amp.GradScaler, fpsim.quantize and figures known from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.recipes.loss_scaling import POLICIES, Seen
from tests.kit.sweeps import in_turn

Array = npt.NDArray[Any]
loss_scaling, policy = fp.analysis.loss_scaling, fp.analysis.loss_scaling_policy


def f32(*values: float) -> Array:
    """A float32 array."""
    return np.array(values, np.float32)


def gradients(steps: int, size: int, seed: int = 0) -> Iterator[Array]:
    """log2|g| ~ N(mu, 4) of which 23.5 % lie below 2^-25, what FP16 rounds to 0."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield (np.exp2(rng.normal(-22.11, 4, size)) * rng.choice([-1, 1], size)).astype(np.float32)


def with_overflows(pattern: str) -> list[Array]:
    """Steps whose gradients are Inf for x, and small otherwise."""
    return [f32(np.inf if sign == "x" else 2.0**-20) for sign in pattern]


# ---- the shares


def test_shares_are_those_of_rounding_the_scaled_gradients() -> None:
    x = f32(2.0**-26, -(2.0**-25), 1e-3, 0.0, 4.0, -3e4, 0.5)
    report = loss_scaling([x], policies=["static"])
    step = report.of("static")[0]
    q = fp.quantize(x * np.float32(2.0**15), fp.FP16)
    assert step.overflow == np.mean(np.isinf(q))
    assert step.underflow == np.mean((q == 0) & (x != 0))
    assert loss_scaling([x], policies=["none"]).of("none")[0].underflow == 2 / 7


def test_steps_may_be_arrays_dicts_lists_and_tensors() -> None:
    torch = pytest.importorskip("torch")
    x, y = f32(1e-9, 1.0), f32(1e-8, 2e5).reshape(2, 1)
    steps = [{"w": x, "b": y}, [x, y], (torch.from_numpy(x).requires_grad_(), torch.from_numpy(y))]
    report = loss_scaling(iter(steps), policies=["none"])
    assert [(step.count, step.overflows, step.underflows) for step in report.steps] == [(4, 1, 2)] * 3


def test_gradients_that_were_not_finite_skip_a_step_and_are_no_overflow_of_the_scale() -> None:
    report = loss_scaling([f32(np.nan, 1.0), f32(np.inf, 1.0)], policies=["none", "dynamic"])
    assert [step.skipped for step in report.steps] == [True] * 4
    assert [step.overflows for step in report.of("none")] == [0, 0]


def test_finite_gradients_that_float32_does_not_hold_are_overflows() -> None:
    step = loss_scaling([np.array([1e39, 1.0, np.inf])], policies=["none"]).steps[0]
    assert (step.count, step.overflows, step.overflowed) == (3, 1, True)


def test_other_formats_overflow_elsewhere() -> None:
    x = [f32(500.0, 1.0)]
    assert loss_scaling(x, policies="none", fmt="e4m3").steps[0].overflow == 0.5
    assert loss_scaling(x, policies="none", fmt="bf16").steps[0].overflow == 0.0


# ---- policies


@in_turn("pattern", ["x", "xx....", "." * 7, "....x......", "...x...x", "x" * 30, "." * 40])
@in_turn("interval", [1, 3, 4])
def test_dynamic_is_torch_amp_gradscaler(pattern: str, interval: int) -> None:
    """Scale after scale, from 2^16, with steps skipped where torch skips them."""
    torch = pytest.importorskip("torch")
    scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler.scale(torch.zeros(()))  # sets the scale up
    scales, skipped = [], []
    for element in with_overflows(pattern):
        scales.append(scaler.get_scale())
        parameter.grad = torch.from_numpy(element.copy())
        with torch.no_grad():
            parameter.zero_()
        scaler.step(optimizer)
        skipped.append(float(parameter.detach()) == 0)
        scaler.update()
        optimizer.zero_grad()
    dynamic = policy("dynamic").replace(interval=interval)
    steps = loss_scaling([x * 2.0**-30 for x in with_overflows(pattern)], policies=[dynamic], fmt="bf16").steps
    assert [step.scale for step in steps] == scales
    assert [step.skipped for step in steps] == skipped


def test_dynamic_has_the_defaults_of_gradscaler() -> None:
    torch = pytest.importorskip("torch")
    scaler, dynamic = torch.amp.GradScaler("cpu"), policy("dynamic")
    scaler.scale(torch.zeros(()))
    assert dynamic.scale == scaler.get_scale() == 2.0**16
    assert (dynamic.growth, dynamic.backoff) == (scaler.get_growth_factor(), scaler.get_backoff_factor())
    assert dynamic.interval == scaler.get_growth_interval() == 2000


def test_dynamic_doubles_after_2000_clean_steps_and_halves_after_an_overflow() -> None:
    dynamic = policy("dynamic")
    clean, bad = Seen(False, 1.0, 1.0, 65504.0), Seen(True, math.inf, math.inf, 65504.0)
    state = dynamic.after(dynamic.start(), bad)
    assert state.scale == 32768
    for _ in range(1999):
        state = dynamic.after(state, clean)
    assert state.scale == 32768
    assert dynamic.after(state, clean).scale == 65536


def test_dynamic_stays_finite_and_may_sink_to_0_as_torchs_does() -> None:
    dynamic = policy("dynamic").replace(interval=1)
    state = dynamic.start()
    for _ in range(200):
        state = dynamic.after(state, Seen(False, 1.0, 1.0, 65504.0))
    assert state.scale == 2.0**127
    for _ in range(300):
        state = dynamic.after(state, Seen(True, math.inf, math.inf, 65504.0))
    assert state.scale == 0


def test_ema_puts_the_largest_gradients_below_the_largest_value() -> None:
    ema = policy("ema")
    report = loss_scaling(gradients(60, 4000), policies=[ema])
    amax = max(float(np.abs(x).max()) for x in gradients(1, 4000))
    last = report.scales("ema")[-1]
    assert 65504 / 2**8 < amax * last < 65504 * 2
    assert report.totals[0]["underflow"] < 1e-4
    assert report.totals[0]["skipped"] < 0.2


def test_known_shares_of_a_synthetic_stream() -> None:
    static = [policy("static").replace(name=str(k), scale=2.0**k) for k in (3, 4.57, 7, 15)]
    report = loss_scaling(gradients(60, 20_000), policies=["none", *static, "dynamic"])
    wanted = {"none": 0.235, "3": 0.072, "4.57": 0.033, "7": 0.0074}
    for row in report.totals:
        if row["policy"] in wanted:
            assert row["underflow"] == pytest.approx(wanted[row["policy"]], rel=0.1)
            assert row["skipped"] == 0
        else:
            assert row["underflow"] < 1e-4


def test_the_inverted_policy_loses_nearly_everything() -> None:
    row = loss_scaling(gradients(400, 2000), policies=["inverted"]).totals[0]
    assert row["underflow"] > 0.9
    assert row["overflowed"] == 0
    assert row["last_scale"] == 2.0**-24
    assert POLICIES["inverted"].faulty


def test_the_norm_driven_policy_runs_to_one_of_its_bounds() -> None:
    up = loss_scaling(gradients(400, 2000), policies=["norm_driven"])
    assert up.totals[0]["last_scale"] == 2.0**24
    assert up.totals[0]["applied_overflows"] > 0.17
    small = policy("norm_driven").replace(threshold=2.0**20)
    down = loss_scaling(gradients(1500, 500), policies=[small])
    assert down.totals[0]["last_scale"] == 2.0**-24
    assert down.totals[0]["underflow"] > 0.5


def test_the_eager_policy_applies_steps_that_overflowed() -> None:
    report = loss_scaling(with_overflows("..x..x"), policies=["eager", "dynamic"])
    assert [step.skipped for step in report.of("eager")] == [False] * 6
    assert report.scales("eager") == (65536, 65536, 65536, 32768, 65536, 65536)
    assert report.totals[0]["applied_overflows"] == pytest.approx(2 / 6)
    assert report.totals[1]["applied_overflows"] == 0


def test_every_faulty_policy_says_what_is_wrong() -> None:
    faulty = {name for name, row in POLICIES.items() if row.faulty}
    assert faulty == {"eager", "inverted", "norm_driven"}
    assert all(row.source for row in POLICIES.values())


# ---- reports


def test_the_sentence_is_a_verdict() -> None:
    text = str(loss_scaling(gradients(200, 500), policies=["none", "dynamic", "norm_driven"]))
    assert text.startswith("in FP16 over 200 steps: none loses 2")
    assert "; dynamic loses" in text
    assert "applies overflows in" in text.rpartition("; ")[2]


def test_frames_pages_and_figures() -> None:
    pytest.importorskip("pandas")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    report = loss_scaling(with_overflows(".x..x..."), policies=list(POLICIES))
    frame = report.to_frame()
    assert len(frame) == 8 * len(POLICIES)
    assert frame[frame["policy"] == "dynamic"]["scale"].tolist() == list(report.scales("dynamic"))
    assert report._repr_html_().count("<tr>") == 1 + len(POLICIES)
    ax = report.plot()
    curves = [np.asarray(line.get_ydata()).tolist() for line in ax.get_lines()]
    assert [math.log2(scale) for scale in report.scales("dynamic")] in curves
    ax.figure.canvas.draw()
    matplotlib.pyplot.close(ax.figure)


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (
        [np.ones(2)],
        {"policies": ["dinamic"]},
        ValueError,
        "policies must be one of .*; got 'dinamic'. Did you mean 'dynamic'",
    ),
    ([np.ones(2)], {"policies": []}, ValueError, "policies must name at least one"),
    ([np.ones(2)], {"policies": 3}, TypeError, "policies must be names or LossScalingPolicy objects; got 3"),
    ([np.ones(2)], {"policies": ["none", "none"]}, ValueError, "got 'none' twice"),
    ([np.ones(2)], {"fmt": "e2m1"}, ValueError, "fmt must have an Inf or NaN, .*; got E2M1"),
    ([np.ones(2)], {"fmt": "fp64"}, ValueError, "fmt must be a format whose values float32 holds; got FP64"),
    ([], {}, ValueError, "at least one step; got none"),
    ([np.zeros(0)], {}, ValueError, "step 0 has none"),
    ([np.ones(2), {}], {}, ValueError, "step 1 has none"),
    ([np.ones(2, int)], {}, TypeError, r"stream\[0\] must be an array of float16, .*; got int64"),
    ([{"w": np.ones(2, int)}], {}, TypeError, r"stream\[0\]\['w'\] must be an array"),
    ({"w": np.ones(2)}, {}, TypeError, "stream must yield the gradients of each step"),
    (np.ones(2), {}, TypeError, "stream must yield the gradients of each step"),
    (3, {}, TypeError, "stream must yield the gradients of each step"),
]


@in_turn("stream, keywords, kind, match", WRONG)
def test_bad_input_gets_one_clear_sentence(
    stream: Any, keywords: dict[str, Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match) as raised:
        loss_scaling(stream, **keywords)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rule", "grow"),
        ("scale", 0.0),
        ("growth", math.inf),
        ("decay", 1.0),
        ("interval", 0),
        ("margin", -1),
        ("skips", 1),
    ],
)
def test_policies_refuse_fields_that_are_none(field: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{field} must be"):
        policy("dynamic").replace(**{field: value})


def test_policies_refuse_fields_that_they_do_not_have() -> None:
    with pytest.raises(ValueError, match=r"a field of a policy must be one of .*; got 'scal'. Did you mean 'scale'"):
        policy("static").replace(scal=2.0)


def test_meta_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="meta device"):
        loss_scaling([torch.empty(4, device="meta")])


def test_gradients_that_no_scale_saves_are_counted() -> None:
    stream = [np.array([1e-6, value], np.float32) for value in (1.0, np.nan, 2.0, -np.inf, 1e5)]
    report = fp.analysis.loss_scaling(stream, policies=["none", "static"])
    assert [step.nonfinite for step in report.of("none")] == [0, 1, 0, 1, 0]
    assert [step.overflows for step in report.of("none")] == [0, 0, 0, 0, 1]
    assert str(report).endswith("of the steps. In 2 steps gradients are Inf or NaN with any scale")
    assert "with any scale" not in str(fp.analysis.loss_scaling(stream[:1]))
