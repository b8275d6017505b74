"""Every kind of state: steps, resuming in the middle, files, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.scaling.file import save
from fpsim.scaling.report import ScaleCounts
from fpsim.scaling.states.delayed import DelayedScaling
from fpsim.scaling.states.periodic import OnlineScaling, PeriodicScaling
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.scaling.states.steps import NOTHING, f32, kinds, tensors

Array = npt.NDArray[Any]


# ---- steps


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


# ---- resuming and files


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
            for split in (0, 1, 2, 5, 11, 12):
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


# ---- mistakes

HALF: dict[str, Any] = {"margin": 0.5}
NO_SCALING: list[Any] = [5]


@in_turn(
    "make, message",
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
        (lambda: OnlineScaling("int8", *NO_SCALING), "scaling must be an fp.Scaling"),
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


@in_turn(
    "state, message",
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
