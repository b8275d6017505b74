"""Scales that last over steps: Transformer Engine's rule bit by bit, counts of elements, and states that resume."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.runtime.threads import SMALLEST
from fpsim.scaling.file import save
from fpsim.scaling.report import ScaleCounts
from fpsim.scaling.states.delayed import DelayedScaling
from fpsim.scaling.states.periodic import OnlineScaling, PeriodicScaling
from fpsim.scaling.states.steps import encode_with_factors
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import sweep
from tests.oracles import scaling as so

Array = npt.NDArray[Any]
f32: Any = np.float32
LARGEST = np.finfo(np.float32).max
NOTHING = np.zeros((0, 4), np.float32)

# ---- Transformer Engine's rule, stated again


class Reference:
    """One tensor: amax_and_scale_update of delayed_scaling.cu, a scalar at a time."""

    def __init__(self, history: int, algorithm: str, margin: int, largest: float, *, bulk: bool = False) -> None:
        self.history = [f32(0)] * history
        self.scale = f32(1)
        self.algorithm = algorithm
        self.bulk = bulk  # kernel_bulk: a step without an amax does not roll
        self.scaled_max = f32(largest) * f32(2) ** f32(-margin)

    def observe(self, x: Array) -> None:
        """What the cast of a tensor leaves behind, and the update after it."""
        last = f32(0)
        for magnitude in np.abs(x).ravel():
            last = np.fmax(last, f32(magnitude))
        if last == 0 and self.bulk:
            return
        rolled = [*self.history[1:], last]
        amax = f32(0)
        for entry in rolled:
            amax = np.fmax(amax, entry)
        self.history = [f32(0), *rolled[1:]]
        if self.algorithm == "most_recent":
            amax = last
        if np.isfinite(amax) and amax > 0:
            with np.errstate(over="ignore"):
                self.scale = self.scaled_max / amax
            if np.isinf(self.scale):
                self.scale = LARGEST

    def codes(self, x: Array, fmt: fp.Format) -> Array:
        """x * scale cast as hardware casts with saturation."""
        with np.errstate(all="ignore"):
            scaled = x * self.scale
            limit = f32(fmt.max)
            # a comparison leaves NaN as it is
            clipped = np.where(scaled > limit, limit, np.where(scaled < -limit, -limit, scaled))
            codes: Array = clipped.astype(f32).astype(fmt.dtype).view(np.uint8)
        return codes


def tensors(steps: int, shape: tuple[int, ...] = (3, 5)) -> Iterator[Array]:
    """Tensors whose amax grows, shrinks, vanishes, is tiny, huge, infinite or beside NaN."""
    generator = np.random.default_rng(11)
    for step in range(steps):
        kind = generator.integers(12)
        x = generator.standard_normal(shape) * 2.0 ** (20 * math.sin(step / 7))
        if kind == 0:
            x *= 0
        elif kind == 1:
            x.flat[step % x.size] = np.nan
        elif kind == 2:
            x[:] = np.nan
        elif kind == 3 and generator.integers(4) == 0:
            x.flat[step % x.size] = -np.inf
        elif kind == 4:
            x *= 2.0**-150
        elif kind == 5:
            x = np.clip(x * 2.0**120, -float(LARGEST), float(LARGEST))
        yield x.astype(np.float32)


@pytest.mark.parametrize("bulk", [False, True])
@sweep("steps", 90, 300)
@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E5M2])
@pytest.mark.parametrize(("history", "algorithm", "margin"), [
    (1, "max", 0), (2, "max", 0), (3, "most_recent", 1), (1, "most_recent", -2), (16, "max", 3), (1024, "max", 0),
])  # fmt: skip
def test_delayed_scaling_is_transformer_engines(
    fmt: fp.Format, history: int, algorithm: str, margin: int, bulk: bool, steps: int
) -> None:
    zero_amax = "skip" if bulk else "roll"
    state = DelayedScaling(fmt, history=history, amax=algorithm, margin=margin, zero_amax=zero_amax)
    want = Reference(history, algorithm, margin, fmt.max, bulk=bulk)
    for x in tensors(steps if history < 1024 else 60):
        scale = want.scale
        codes = want.codes(x, fmt)
        want.observe(x)
        q = state.encode(x)
        assert_bits_equal(q.codes, codes)
        assert_bits_equal(q.scales, np.full((1, 1), f32(1) / scale, np.float32))
        assert state.scales is not None
        assert state.amax_history is not None
        assert_bits_equal(state.scales, np.full((1, 1), f32(1) / want.scale, np.float32))
        assert_bits_equal(state.amax_history[:, 0, 0], np.array(want.history, np.float32))


def test_every_tile_has_a_history_of_its_own() -> None:
    scaling = fp.scalings.TILE_1X128.replace(block=(2, 4))
    state = DelayedScaling(fp.E4M3, scaling, history=3)
    wanted = {index: Reference(3, "max", 0, 448) for index, _ in so.tiles((5, 10), (2, 4))}
    for x in tensors(80, (5, 10)):
        q = state.encode(x)
        for index, place in so.tiles((5, 10), (2, 4)):
            assert_bits_equal(q.codes[place], wanted[index].codes(x[place], fp.E4M3))
            wanted[index].observe(x[place])
        assert_bits_equal(
            state.state_dict()["encode_scales"], np.array([want.scale for want in wanted.values()]).reshape(3, 3)
        )


def test_the_published_defaults_keep_a_peak_for_1024_steps() -> None:
    state = DelayedScaling(fp.E4M3)
    assert (state.history, state.amax, state.margin) == (1024, "max", 0)
    used = [state.encode(f32([100 if step == 0 else 1])).scales.item() for step in range(1026)]
    assert used[0] == 1
    assert set(used[1:1025]) == {float(f32(1) / (f32(448) / f32(100)))}
    assert used[1025] == float(f32(1) / f32(448))


def test_an_infinite_amax_keeps_the_scale_while_the_history_holds_it() -> None:
    state = DelayedScaling(fp.E4M3, history=4)
    used = [state.encode(f32([np.inf if step == 1 else step + 1])).scales.item() for step in range(8)]
    first, third = (float(f32(1) / (f32(448) / f32(amax))) for amax in (1, 6))
    # steps 1 to 4 are updated with Inf in the history, step 5 is the first without
    assert used[1:6] == [first] * 5
    assert used[6] == third


def test_an_amax_too_small_for_its_scale_gives_the_largest_float() -> None:
    state = DelayedScaling(fp.E4M3)
    tiny = f32([2**-140, -(2**-149)])
    state.encode(tiny)
    assert state.state_dict()["encode_scales"] == LARGEST
    assert_bits_equal(state.encode(tiny).codes, fp.encode(tiny * LARGEST, fp.E4M3))


def test_a_zero_tensor_rolls_or_is_skipped() -> None:
    for word, after in (("roll", 1.0), ("skip", 4.0)):
        state = DelayedScaling(fp.E4M3, history=2, zero_amax=word)
        for amax in (4, 0, 1):
            state.encode(f32([amax]))
        assert state.state_dict()["encode_scales"].item() == 448 / after


def test_delayed_scaling_saturates_unless_told_otherwise() -> None:
    state = DelayedScaling(fp.E4M3)
    x = f32([1000, -np.inf, np.nan])
    assert state.encode(x).codes.tolist() == [0x7E, 0xFE, 0x7F]
    assert DelayedScaling(fp.E4M3).encode(x, overflow="nonfinite").codes.tolist() == [0x7F, 0xFF, 0x7F]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, ">f4"])
def test_delayed_scaling_takes_every_dtype(dtype: Any) -> None:
    state, wide = DelayedScaling("e4m3"), DelayedScaling("e4m3")
    for x in tensors(30):
        narrow = np.clip(x, -6e4, 6e4).astype(dtype)
        exact = narrow.astype(np.float32) if narrow.dtype != np.float64 else narrow
        q = state.encode(narrow)
        factor = wide.state_dict().get("encode_scales", f32(1))
        assert_bits_equal(q.codes, fp.encode(exact * factor.astype(exact.dtype), "e4m3", overflow="saturate"))
        wide.encode(exact.astype(np.float32))
        assert_bits_equal(state.state_dict()["encode_scales"], wide.state_dict()["encode_scales"])
        assert state.last == ScaleCounts(**{**wide.last.to_dict(), "underflowed": state.last.underflowed})


def test_factors_need_not_be_inverse_scales() -> None:
    x = np.random.default_rng(0).standard_normal((4, 200)).astype(np.float32)
    scales = f32([[0.5], [3], [7], [1]])
    factors = f32([[1], [2], [0.1], [1e3]])
    q = encode_with_factors(x, "e4m3", fp.scalings.ROW, scales, factors, overflow="saturate")
    assert_bits_equal(q.codes, fp.encode(x * factors, "e4m3", overflow="saturate"))
    assert_bits_equal(q.scales, scales)


# ---- recalibration and online


@pytest.mark.parametrize("name", ["TENSOR", "TE_TENSOR", "TILE_1X128", "MX", "NVFP4", "TE_NVFP4", "TORCHAO_NVFP4"])
def test_periodic_scales_are_those_of_encode_scaled(name: str) -> None:
    scaling = getattr(fp.scalings, name)
    state = PeriodicScaling(fp.E2M1, scaling, every=3)
    found = np.empty(0)
    for step, x in enumerate(tensors(10, (4, 70))):
        q = state.encode(x)
        if step % 3 == 0:
            want = fp.encode_scaled(x, fp.E2M1, scaling)
            found = want.scales
        else:
            want = fp.encode_scaled(x, fp.E2M1, scaling, scales=found)
        assert_bits_equal(q.codes, want.codes)
        assert_bits_equal(q.scales, want.scales)
        assert state.last.recalibrations == (step % 3 == 0)
        assert state.scales is not None
        assert_bits_equal(state.scales, found)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("nan", ["tile", "element"])
@pytest.mark.parametrize("name", ["TENSOR", "TILE_1X128", "TE_TENSOR"])
def test_a_nan_between_recalibrations_spoils_its_tile_and_no_later_step(name: str, nan: str, back: bool) -> None:
    scaling = getattr(fp.scalings, name).replace(nan=nan)
    clean = np.arange(1, 201, dtype=np.float32).reshape(1, 200)
    spoilt = clean.copy()
    spoilt[0, 150], spoilt[0, 160], spoilt[0, 1] = np.nan, 1e6, 1e-9
    state = PeriodicScaling("int8", scaling, every=3)
    run = state.quantize if back else lambda x: state.encode(x).decode()
    want = run(clean)
    scales = state.scales
    got = run(spoilt)
    lost = np.zeros((1, 200), bool)
    if nan == "tile":
        lost[0, 128 if name == "TILE_1X128" else 0 :] = True
    else:
        lost[0, 150] = False
        assert got[0, 150] == got[0, 160] == 127 * (scales.ravel()[-1] if scales is not None else 0)
    assert np.isnan(got[lost]).all()
    assert np.isfinite(got[~lost]).all()
    # what a NaN spoilt is neither saturated nor underflowed
    assert (state.last.saturated, state.last.underflowed) == (int(not lost[0, 160]), int(not lost[0, 1]))
    assert_bits_equal(run(clean), want)


def saturated_by_growth(every: int, growth: float, steps: int) -> tuple[list[int], list[int]]:
    """(counts of the state, counts of a plain loop) for numbers that grow from step to step."""
    x = np.random.default_rng(3).standard_normal(400)
    state = PeriodicScaling(fp.E4M3, every=every)
    got, want = [], []
    scale = f32(0)
    for step in range(steps):
        now = (x * (1 + growth) ** step).astype(np.float32)
        state.encode(now)
        got.append(state.last.saturated)
        if step % every == 0:
            scale = np.abs(now).max() / f32(448)
        want.append(int(np.count_nonzero(np.abs(now / scale) > 464)))  # 464 is a tie, and 448 has the even code
    return got, want


@pytest.mark.parametrize(("every", "growth"), [(1, 0.02), (16, 0.02), (1000, 0.002)])
def test_saturation_grows_with_the_age_of_a_scale(every: int, growth: float) -> None:
    got, want = saturated_by_growth(every, growth, 40 if every < 1000 else 1001)
    assert got == want
    youngest, oldest = got[0], got[every - 1]
    assert youngest == 0
    assert got[:every] == sorted(got[:every])
    assert (oldest > 0) == (every > 1)
    assert got[every] == 0


def test_online_steps_are_those_of_encode_scaled() -> None:
    state = OnlineScaling(fp.E4M3, fp.scalings.TILE_1X128)
    for shape in ((3, 200), (400,), (2, 2, 130)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        q, want = state.encode(x), fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
        assert_bits_equal(q.codes, want.codes)
        assert_bits_equal(q.scales, want.scales)
        assert q.report == want.report
    assert state.counts == ScaleCounts(elements=600 + 400 + 520, steps=3, recalibrations=3).merge(
        ScaleCounts(underflowed=state.counts.underflowed)
    )


# ---- every kind


def kinds(fmt: Any = fp.E4M3, scaling: fp.Scaling = fp.scalings.TENSOR) -> list[Any]:
    return [
        DelayedScaling(fmt, scaling, history=3),
        PeriodicScaling(fmt, scaling, every=2),
        OnlineScaling(fmt, scaling),
    ]


@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E2M1, fp.INT8, fp.FP16])
@pytest.mark.parametrize("options", [{}, {"rounding": "stochastic", "seed": 5}, {"rounding": "toward_zero"}])
def test_quantize_is_encode_and_decode(fmt: Any, options: dict[str, Any]) -> None:
    for encoder, quantizer in zip(kinds(fmt), kinds(fmt), strict=True):
        for x in tensors(25):
            assert_bits_equal(quantizer.quantize(x, **options), encoder.encode(x, **options).decode())
            assert quantizer.last == encoder.last
        assert repr(quantizer.state_dict()) == repr(encoder.state_dict())


def test_an_array_without_elements_changes_nothing() -> None:
    for state in kinds():
        for _ in range(2):
            before = repr(state.state_dict())
            assert state.encode(NOTHING).shape == NOTHING.shape
            assert_bits_equal(state.quantize(NOTHING), NOTHING)
            assert repr(state.state_dict()) == before
            state.encode(np.ones((2, 4), np.float32))


def test_stochastic_steps_take_their_own_seeds() -> None:
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    for state in kinds():
        state.encode(x)
        first, again = (copy.deepcopy(state).encode(x, rounding="stochastic", seed=seed).codes for seed in (1, 1))
        other = copy.deepcopy(state).encode(x, rounding="stochastic", seed=2).codes
        assert_bits_equal(first, again)
        assert np.any(first != other)
        with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
            state.encode(x, rounding="stochastic")


# ---- counts


def brute_force(ratio: Array, x: Array, fmt: Any, codes: Array, **options: Any) -> tuple[int, int]:
    """(saturated, underflowed) of scaled elements, counted in a format with more room at the top."""
    like = fmt.magnitudes if isinstance(fmt, fp.IntegerFormat) else fmt
    extended = fp.Format(
        "more room", like.exponent_bits + 2, like.mantissa_bits, bias=like.bias, signed=like.signed,
        subnormals=like.subnormals,
    )  # fmt: skip
    if like.signed:
        values = fp.quantize(ratio.astype(np.float64), extended, **options)
        beyond = np.abs(values) > fmt.max
    else:
        signed = fp.Format("more room", like.exponent_bits + 2, like.mantissa_bits, bias=like.bias)
        values = fp.quantize(ratio.astype(np.float64), signed, **options)
        beyond = (values > fmt.max) | (values < 0)
    zero = codes == 0 if isinstance(fmt, fp.IntegerFormat) else fp.decode(codes, fmt, np.float64) == 0
    beyond |= np.isinf(x)
    underflow = zero & (x != 0) & ~np.isnan(x) & ~np.isnan(ratio) & ~beyond
    return int(np.count_nonzero(beyond)), int(np.count_nonzero(underflow))


def nasty(shape: tuple[int, ...] = (6, 150)) -> Array:
    """Numbers of every size, both zeros, NaN and Inf."""
    generator = np.random.default_rng(8)
    x = generator.standard_normal(shape) * 2.0 ** generator.integers(-20, 3, shape)
    x[0, :20] = [0, -0.0] * 10
    x[1, 3], x[1, 4], x[2, 5], x[2, 140] = np.nan, -np.nan, np.inf, -np.inf
    return x.astype(np.float32)


ROUNDINGS: list[dict[str, Any]] = [
    *({"rounding": mode} for mode in ("nearest_even", "nearest_away", "toward_zero", "up", "down", "odd")),
    {"rounding": "stochastic", "seed": 77},
    {"rounding": "stochastic", "seed": 77, "random_bits": 4},
]


@pytest.mark.parametrize("options", ROUNDINGS, ids=lambda options: "_".join(str(word) for word in options.values()))
def test_counts_are_those_of_a_plain_loop_in_every_mode(options: dict[str, Any]) -> None:
    x = nasty()
    for fmt in (fp.E4M3, fp.E2M1, fp.INT8):
        state = PeriodicScaling(fmt, fp.scalings.TENSOR.replace(nan="element"), every=2)
        state.encode(x / f32(9))
        assert state.scales is not None
        scale = state.scales.item()
        q = state.encode(x, **options)
        want = brute_force(x / f32(scale), x, fmt, q.codes, **options)
        assert (state.last.saturated, state.last.underflowed) == want
        assert want[0] > 0
        assert (want[1] > 0) == (options["rounding"] != "odd")  # which takes nothing to zero


@pytest.mark.parametrize("overflow", sorted(fp.policies.OVERFLOWS))
@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E5M2, fp.E2M1, fp.E4M3FNUZ, fp.INT8, fp.format("p3109_k8p4ue")])
def test_counts_do_not_depend_on_the_overflow_policy(fmt: Any, overflow: str) -> None:
    state = DelayedScaling(fmt, history=1, margin=-3)
    x = nasty()
    x[np.isinf(x)] = 4
    state.encode(x, overflow=overflow)
    factor = state.state_dict()["encode_scales"].item()
    x = nasty()
    q = state.encode(x, overflow=overflow)
    if overflow == "torch" and fmt == fp.E4M3:
        assert np.all(fp.decode(q.codes, fmt)[np.isinf(x)] == x[np.isinf(x)].clip(-448, 448))
    want = brute_force(x * f32(factor), x, fmt, q.codes)
    assert (state.last.saturated, state.last.underflowed) == want


@pytest.mark.parametrize("subnormals", ["keep", "flush"])
@pytest.mark.parametrize("name", [
    "TENSOR", "ROW", "COLUMN", "TILE_1X128", "TILE_128X1", "BLOCK_128X128", "MX", "NVFP4", "TE_TENSOR", "TE_1X128_FP32",
    "TE_MX", "TE_NVFP4", "TORCHAO_TENSOR", "TORCHAO_NVFP4", "DEEPGEMM_1X128",
])  # fmt: skip
def test_online_counts_are_those_of_the_oracle(name: str, subnormals: str) -> None:
    x, scaling = nasty(), getattr(fp.scalings, name)
    fmt = fp.E2M1 if scaling.tensor_scale else fp.E4M3
    for source in (x, x.astype(np.float64)) if name in ("TENSOR", "TE_TENSOR", "NVFP4") else (x,):
        state = OnlineScaling(fmt, scaling)
        q = state.encode(source, subnormals=subnormals)
        want = so.encode(source, fmt, scaling, subnormals=subnormals)
        got = (state.last.saturated, state.last.underflowed)
        assert got == brute_force(want.ratio, source, fmt, q.codes, subnormals=subnormals), source.dtype


def test_minus_zero_is_a_zero() -> None:
    state = DelayedScaling(fp.E4M3)
    q = state.encode(f32([-1e-9, 1e-9, -0.0, 0.0]))
    assert q.codes.tolist() == [0x80, 0, 0x80, 0]
    assert state.counts.underflowed == 2
    assert state.counts.underflow_rate == 0.5


@pytest.mark.parametrize("options", [{}, {"rounding": "stochastic", "seed": 3}])
def test_counts_add_up_over_threads_and_layouts(options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((3 * SMALLEST // 1000, 1000)).astype(np.float32)
    scale = f32(x.max() / 448 / 2)
    codes = fp.encode(x / scale, fp.E4M3, overflow="saturate", **options)
    want = brute_force(x / scale, x, fp.E4M3, codes, **options)
    state = PeriodicScaling(fp.E4M3, fp.scalings.TENSOR)
    for layout in (x, x[:, ::-1].copy()[:, ::-1], np.asfortranarray(x), x.astype(">f4")):
        facts = state.state_dict()
        facts["scales"], facts["counts"] = np.full((1, 1), scale), np.array([1, 0, 0, 1, 1], np.int64)
        state.load_state_dict(facts)
        assert_bits_equal(state.encode(layout, **options).codes, codes)
        assert (state.last.saturated, state.last.underflowed) == want


def test_counts_merge_and_have_rates() -> None:
    some = ScaleCounts(elements=4, saturated=1, underflowed=2, steps=1, recalibrations=1)
    assert some.merge(ScaleCounts()) == some
    assert some.merge(some).to_dict() == {
        "elements": 8, "saturated": 2, "underflowed": 4, "steps": 2, "recalibrations": 2
    }  # fmt: skip
    assert (some.saturation_rate, some.underflow_rate) == (0.25, 0.5)
    assert math.isnan(ScaleCounts().saturation_rate)
    assert math.isnan(ScaleCounts().underflow_rate)


def test_the_total_is_the_sum_of_the_steps() -> None:
    for state in kinds():
        total = ScaleCounts()
        for x in tensors(20):
            state.encode(x)
            total = total.merge(state.last)
        assert state.counts == total
        assert total.steps == 20


# ---- states


def by_state_dict(state: Any, path: Path) -> Any:
    options = {name: getattr(state, name) for name in state.OPTIONS}
    fresh = type(state)(state.fmt, state.scaling, **options)
    fresh.load_state_dict(state.state_dict())
    return fresh


def by_file(suffix: str) -> Callable[[Any, Path], Any]:
    def through(state: Any, path: Path) -> Any:
        state.save(path / f"state{suffix}")
        return type(state).load(path / f"state{suffix}")

    return through


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "state_dict": by_state_dict,
    "npz": by_file(".npz"),
    "safetensors": by_file(".safetensors"),
    "pickle": lambda state, path: pickle.loads(pickle.dumps(state)),
    "deepcopy": lambda state, path: copy.deepcopy(state),
}


def run(state: Any, steps: list[Array], start: int = 0) -> list[tuple[bytes, bytes, ScaleCounts]]:
    """Codes, scales and counts of some steps, stochastic ones among them."""
    results = []
    for step, x in enumerate(steps, start):
        q = state.encode(x, rounding="stochastic", seed=step) if step % 3 == 2 else state.encode(x)
        results.append((q.codes.tobytes(), q.scales.tobytes(), state.counts))
    return results


SCALINGS = [fp.scalings.TENSOR, fp.scalings.TILE_1X128.replace(block=(2, 3), nan="element")]


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_is_the_uninterrupted_one(way: str, tmp_path: Path) -> None:
    steps = list(tensors(12))
    for scaling in SCALINGS:
        for index in range(3):
            whole = run(kinds(fp.E4M3, scaling)[index], steps)
            for split in range(len(steps) + 1):
                state = kinds(fp.E4M3, scaling)[index]
                before = run(state, steps[:split])
                resumed = WAYS[way](state, tmp_path)
                assert repr(resumed) == repr(state)
                assert (resumed.counts, resumed.last) == (state.counts, state.last)
                assert before + run(resumed, steps[split:], split) == whole


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2), st.lists(st.integers(0, 30), max_size=4), st.integers(0, 2**32))
@example(0, [0, 0, 1], 0)
def test_runs_resume_at_any_points(index: int, splits: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    steps = [(generator.standard_normal((2, 4)) * 10.0 ** generator.integers(-9, 9)).astype(f32) for _ in range(30)]
    state = kinds()[index]
    got = []
    for start, stop in zip([0, *sorted(splits)], [*sorted(splits), len(steps)], strict=True):
        got += run(state, steps[start:stop], start)
        state = by_state_dict(state, Path())
    assert got == run(kinds()[index], steps)


@pytest.mark.parametrize("fmt", [fp.INT4, fp.format("p3109_k6p3se"), fp.Format("mine", 3, 4), fp.BF16])
def test_files_hold_every_format_and_scaling(fmt: Any, tmp_path: Path) -> None:
    scaling = fp.Scaling(block=(2, 3), scale_format=fp.E4M3, scale_rounding=fp.Rounding.UP, amax_floor=1e-3)
    state = PeriodicScaling(fmt, scaling, every=7)
    state.encode(np.ones((4, 5), np.float32))
    state.save(tmp_path / "state.npz")
    loaded = PeriodicScaling.load(tmp_path / "state.npz")
    assert (loaded.fmt, loaded.scaling, loaded.every) == (fmt, scaling, 7)
    assert_bits_equal(loaded.state_dict()["scales"], state.state_dict()["scales"])


def test_a_state_is_a_copy() -> None:
    state = DelayedScaling(fp.E4M3, history=2)
    state.encode(f32([3]))
    kept = state.state_dict()
    other = by_state_dict(state, Path())
    state.encode(f32([9]))
    assert kept["amax_history"].tolist() == [[0], [3]]
    kept["amax_history"][:] = 7
    assert other.amax_history.tolist() == [[0], [3]]


# ---- mistakes

HALF: dict[str, Any] = {"margin": 0.5}
A_NAME: list[Any] = ["TENSOR"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DelayedScaling("e4m3", history=0), "history must be an integer in 1 .. 1048576; got 0"),
        (
            lambda: DelayedScaling("e4m3", history=1 << 40),
            "history must be an integer in 1 .. 1048576; got 1099511627776",
        ),
        (lambda: DelayedScaling("e4m3", history=True), "history must be an integer in 1 .. 1048576; got True"),
        (lambda: DelayedScaling("e4m3", **HALF), r"margin must be an integer in -126 .. 126; got 0.5"),
        (lambda: DelayedScaling("e4m3", margin=-126), "margin must leave the largest value of E4M3 a float32"),
        (lambda: DelayedScaling("e4m3", amax="recent"), "amax must be one of max, most_recent; got 'recent'"),
        (lambda: DelayedScaling("e4m3", zero_amax="drop"), "zero_amax must be one of roll, skip; got 'drop'"),
        (lambda: DelayedScaling("e4m3", fp.scalings.MX), "takes the block of the scaling alone; got fp.scalings.MX"),
        (lambda: DelayedScaling("e2m1", fp.scalings.NVFP4), "takes the block of the scaling alone"),
        (lambda: PeriodicScaling("e4m3", every=0), "every must be an integer of at least 1; got 0"),
        (lambda: OnlineScaling(fp.LogFMT(8)), "OnlineScaling needs elements that a scale alone places; got LogFMT-8"),
        (lambda: OnlineScaling("uint8", fp.scalings.ROW.replace(symmetric=False)), "that a scale alone places"),
        (lambda: OnlineScaling("fp32"), "up to 16 bits"),
        (lambda: OnlineScaling("int8", *A_NAME), "scaling must be an fp.Scaling"),
    ],
)
def test_what_cannot_be_made_says_why(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_other_tiles_are_refused() -> None:
    for state in kinds(scaling=fp.scalings.TILE_1X128)[:2]:
        state.encode(np.ones((3, 200), np.float32))
        before = repr(state.state_dict())
        with pytest.raises(ValueError, match=r"the tiles of the first step, \(3, 2\) of block .*got shape \(3, 300\)"):
            state.encode(np.ones((3, 300), np.float32))
        assert repr(state.state_dict()) == before


@pytest.mark.parametrize("bad", [{"scales": 1}, {"rounding": "nearest"}, {"overflow": "wrap"}])
def test_a_step_that_fails_is_none(bad: dict[str, Any]) -> None:
    for state in kinds():
        state.encode(f32([2]))
        before = repr(state.state_dict())
        with pytest.raises((TypeError, ValueError)):
            state.encode(f32([3]), **bad)
        assert repr(state.state_dict()) == before


def with_changes(**changes: Any) -> dict[str, Any]:
    state = DelayedScaling(fp.E4M3, history=2)
    state.encode(np.ones((2, 2), np.float32))
    return {name: x for name, x in {**state.state_dict(), **changes}.items() if x is not None}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (PeriodicScaling(fp.E4M3).state_dict(), "the state's class must be 'DelayedScaling', as here; got 'Periodic"),
        (DelayedScaling(fp.E5M2, history=2).state_dict(), "the state's fmt must be 'E4M3', as here; got 'E5M2'"),
        (DelayedScaling(fp.E4M3, history=3).state_dict(), "the state's options must be .*'history': 2"),
        (DelayedScaling(fp.E4M3, fp.scalings.ROW, history=2).state_dict(), "the state's scaling must be fp.scalings.T"),
        (with_changes(scaling={"block": 3}), "a scaling must be described as"),
        (with_changes(counts=None), "the state must be a dict .* got one without counts"),
        ("state.npz", "the state must be a dict .* got 'state.npz'"),
        (with_changes(counts=np.array([1, 2], np.int64)), "the state's counts must be 5 int64 numbers of at least 0"),
        (with_changes(counts=np.array([4, 0, 0, 0, 0], np.int64)), "must hold arrays after its first step only"),
        (with_changes(encode_scales=None), "the state's arrays must be amax_history, encode_scales; got amax_history"),
        (with_changes(encode_scales=np.ones((1, 1))), "the state's encode_scales must be float32; got float64"),
        (
            with_changes(encode_scales=np.ones((2, 1), f32)),
            r"amax_history must have shape \(2, 2, 1\).*got \(2, 1, 1\)",
        ),
        (with_changes(encode_scales=np.full((1, 1), np.inf, f32)), "encode_scales finite"),
        (with_changes(amax_history=np.full((2, 1, 1), np.nan, f32)), "amax_history must be at least 0"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: Any, message: str) -> None:
    mine = DelayedScaling(fp.E4M3, history=2)
    before = repr(mine.state_dict())
    with pytest.raises(ValueError, match=message):
        mine.load_state_dict(state)
    assert repr(mine.state_dict()) == before


def test_periodic_states_hold_positive_scales() -> None:
    state = PeriodicScaling(fp.E4M3)
    state.encode(f32([1]))
    with pytest.raises(ValueError, match=r"scales must be positive; got 0\.0"):
        state.load_state_dict({**state.state_dict(), "scales": np.zeros(1, f32)})


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    with pytest.raises(FileNotFoundError):
        DelayedScaling.load(path)
    PeriodicScaling(fp.E4M3).save(path)
    with pytest.raises(ValueError, match=r"state.npz must hold what DelayedScaling.save wrote; got PeriodicScaling"):
        DelayedScaling.load(path)
    fp.encode_scaled(f32([1]), "e4m3").save(path)
    with pytest.raises(ValueError, match=r"OnlineScaling.save wrote; got Scaled. Load it with the class"):
        OnlineScaling.load(path)
    OnlineScaling(fp.E4M3).save(path)
    with pytest.raises(ValueError, match=r"state.npz must hold what Scaled.save wrote; got OnlineScaling. Load"):
        fp.Scaled.load(path)
    save(path, {"x": f32([1])}, {})
    with pytest.raises(ValueError, match="got something else"):
        OnlineScaling.load(path)
    with pytest.raises(ValueError, match=r"must end in .npz or .safetensors"):
        OnlineScaling(fp.E4M3).save(tmp_path / "state.bin")


def test_damaged_files_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    state = DelayedScaling(fp.E4M3, history=4)
    state.encode(f32([1, 2]))
    state.save(path)
    whole = path.read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="damaged"):
            DelayedScaling.load(path)
    at = whole.index(state.state_dict()["encode_scales"].tobytes())
    path.write_bytes(whole[:at] + b"\x01" + whole[at + 1 :])
    with pytest.raises(ValueError, match="damaged"):
        DelayedScaling.load(path)
