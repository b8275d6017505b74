"""Calls keep what they found out for the next ones: no call gets what another with other options left behind."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from dataclasses import astuple, fields, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.formats.rounding import rounding_mode
from fpsim.matrix_units.catalogue import float_units
from fpsim.testing import assert_bits_equal
from tests.kit.samples import exactly
from tests.kit.sweeps import in_turn
from tests.oracles import casts

f32: Any = np.float32
X = np.outer([1, -1, 2**-9, 3], [0.3, 1.0625, 1.1875, 17, 464, 1e-3, 1e5, np.inf]).astype(f32)
X8: Any = np.full((2, 64), 0x38, np.uint8)
PLAIN = fp.scalings.TILE_1X128
RENAMED = PLAIN.replace(name="mine")
FORMATS = [fp.E4M3, fp.E5M2, fp.E2M1, fp.Format("mine", 4, 3), fp.Format("mine", 4, 3, bias=6), fp.Format("mine", 3, 2)]

EXAMPLES = 40  # others in every run

cast_words = st.fixed_dictionaries(
    {},
    optional={
        "rounding": st.sampled_from(["nearest_even", "toward_zero", "up", fp.Rounding.ODD, "stochastic"]),
        "overflow": st.sampled_from(["nonfinite", "saturate", "saturate_finite"]),
        "subnormals": st.sampled_from(["keep", "flush"]),
    },
)


@cache
def plans(modules: int) -> list[Any]:
    """Return the bounded caches of plans of all modules; those of kernels are unbounded."""
    found = {}
    for name in [name for name in sys.modules if name.partition(".")[0] == "fpsim"]:
        for value in list(vars(sys.modules[name]).values()):
            if hasattr(value, "cache_info") and value.cache_info().maxsize not in (None, 1):
                found[id(value)] = value
    assert len(found) > 20
    return list(found.values())


def forget() -> None:
    """Empty the caches of plans; those of kernels stay."""
    for each in plans(len(sys.modules)):
        each.cache_clear()


def bits(result: Any) -> list[Any]:
    """All arrays of a result."""
    if isinstance(result, fp.Scaled):
        arrays = [result.codes, result.scales, result.scale_codes, result.tensor_scale, astuple(result.report)]
        return [None if array is None else np.asarray(array) for array in arrays]
    return [np.asarray(result)]


def assert_same_after_others(calls: list[Callable[[], Any]]) -> None:
    """Each of several calls, made among the others, gives what it gives when it is the first."""
    warm = [bits(call()) for _ in range(2) for call in calls][len(calls) :]
    for call, got in zip(calls, warm, strict=True):
        forget()
        for array, want in zip(got, bits(call()), strict=True):
            assert (array is None) == (want is None)
            if array is not None:
                assert_bits_equal(array, want)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(st.sampled_from(FORMATS), cast_words, st.integers(0, 3)), min_size=2, max_size=4))
def test_encode_never_follows_the_options_of_another_call(drawn: list[tuple[fp.Format, dict[str, Any], int]]) -> None:
    calls = [(fmt, {**words, "seed": seed}) for fmt, words, seed in drawn]
    assert_same_after_others([partial(fp.encode, X, fmt, **words) for fmt, words in calls])
    for fmt, words in calls:
        mode = rounding_mode(words.get("rounding", "nearest_even"))
        if mode is not fp.Rounding.STOCHASTIC:
            policy = words.get("overflow", "nonfinite"), words.get("subnormals", "keep")
            want = casts.encode_all(exactly(X.reshape(-1)), fmt, mode.name.lower(), *policy)
            assert_bits_equal(fp.encode(X, fmt, **words).reshape(-1), want)


ODD = np.where(abs(X) < 1e4, X, f32(7))
TILED = [ODD, ODD[:1], ODD.T, ODD.astype(np.float16), ODD.astype(np.float64)]
SCALINGS = [
    PLAIN, RENAMED, fp.scalings.MX, fp.scalings.NVFP4, PLAIN.replace(division="multiply"), PLAIN.replace(amax_floor=8),
    PLAIN.replace(overflow="nonfinite"), PLAIN.replace(block=(2, 4)),
]  # fmt: skip


@settings(max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(TILED), st.sampled_from([*FORMATS, "int8"]), st.sampled_from(SCALINGS),
            st.just({}) | st.builds(lambda words, seed: {**words, "seed": seed}, cast_words, st.integers(0, 3)),
        ),
        min_size=2, max_size=3,
    )
)  # fmt: skip
def test_encode_scaled_never_follows_the_options_of_another_call(drawn: list[tuple[Any, ...]]) -> None:
    def call(x: Any, fmt: Any, scaling: fp.Scaling, words: dict[str, Any]) -> fp.Scaled:
        found = fp.encode_scaled(x, fmt, scaling, **words)
        assert found.scaling is scaling
        return found

    assert_same_after_others([partial(call, *one) for one in drawn])
    assert_same_after_others([partial(fp.quantize_scaled, *one[:3], **one[3]) for one in drawn])


def test_a_scaling_of_another_name_keeps_it() -> None:
    assert PLAIN == RENAMED
    for scaling in (PLAIN, RENAMED, PLAIN):
        assert fp.encode_scaled(X[:, :4], "e4m3", scaling).scaling.name == scaling.name


UNIT = fp.unit("hopper_e4m3_f32")
UNITS = [UNIT, *(replace(UNIT, **change) for change in (
    {"fraction_bits": 14}, {"floor_exponent": -133}, {"result_bits": 12}, {"terms": 16}, {"name": "mine"},
))]  # fmt: skip


SCHEDULES = [fp.schedules.cutlass_2xacc(32), fp.schedules.cublas("sm_90", split_k=2), fp.schedules.triton(64)]
PROMOTIONS = st.sampled_from([None, 32, 64, *SCHEDULES])
OUT_FORMATS = st.sampled_from([None, "bf16", fp.E4M3])


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(st.sampled_from(UNITS), PROMOTIONS, OUT_FORMATS, st.booleans()), min_size=2, max_size=4))
def test_matmul_never_follows_the_options_of_another_call(drawn: list[tuple[Any, ...]]) -> None:
    codes = np.random.default_rng(0).integers(0, 0x7E, (5, 96)).astype(np.uint8)
    c = np.ones((5, 5), f32)

    def call(unit: fp.MatrixUnit, promoted: Any, out_fmt: Any, starts: bool) -> Any:
        start, how = c if starts else None, "schedule" if promoted in SCHEDULES else "promote"
        words = {how: promoted, "out_fmt": out_fmt, "strict": False}
        return fp.matmul(codes, codes.T, start, accumulate=unit, **words)

    assert_same_after_others([partial(call, *one) for one in drawn])
    for unit, *_ in drawn:
        want = fp.dot_add(np.repeat(codes, 5, 0), np.tile(codes, (5, 1)), None, unit).reshape(5, 5)
        assert_bits_equal(fp.matmul(codes, codes.T, accumulate=unit).view(np.uint32), want)


THE_LONG_WAY: dict[str, Any] = {"strict": np.True_}  # which is not the default, though it equals it
ACCUMULATORS = st.builds(
    lambda kind, fmt, words, seed: kind(fmt, **words, seed=seed),
    st.sampled_from([fp.Sequential, fp.FusedMultiplyAdd, fp.Pairwise, fp.Exact, partial(fp.Chunked, chunk=8)]),
    st.sampled_from(["bf16", "fp16", "fp32", fp.Format("mine", 5, 9)]), cast_words, st.integers(0, 3),
)  # fmt: skip


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(ACCUMULATORS, st.sampled_from(["e4m3", fp.E5M2, "uint8"])), min_size=2, max_size=4))
def test_sums_never_follow_the_options_of_another_call(drawn: list[tuple[Any, Any]]) -> None:
    codes = np.random.default_rng(0).integers(0, 0x7C, (5, 33)).astype(np.uint8)

    def product(accumulator: Any, fmt: Any) -> Any:
        if fmt == "uint8":  # codes of nothing
            with pytest.raises(ValueError, match="format must be a float format"):
                fp.matmul(codes, codes.T, accumulate=accumulator, fmt=fmt)
            return 0
        got = fp.matmul(codes, codes.T, accumulate=accumulator, fmt=fmt)
        assert_bits_equal(got, fp.matmul(codes, codes.T, accumulate=accumulator, fmt=fmt, **THE_LONG_WAY))
        return got

    def total(accumulator: Any, fmt: Any) -> Any:
        return 0 if fmt == "uint8" else fp.sum(codes, accumulate=accumulator, fmt=fmt)

    assert_same_after_others([partial(product, *one) for one in drawn])
    assert_same_after_others([partial(total, *one) for one in drawn])


def test_a_schedule_that_cannot_be_hashed_is_taken() -> None:
    mine = replace(SCHEDULES[0], options=(("notes", ["of mine"]),))  # type: ignore[arg-type]
    want = fp.matmul(X8, X8.T, accumulate=UNIT, schedule=SCHEDULES[0])
    assert_bits_equal(fp.matmul(X8, X8.T, accumulate=UNIT, schedule=mine), want)


def test_what_follows_a_sum_is_not_left_out_by_a_plan_without() -> None:
    codes, bias = np.full((3, 64), 0x38, np.uint8), f32([1, 2, 4])
    cases: list[tuple[dict[str, Any], Any]] = [({}, 64), ({"bias": bias}, 64 + bias), ({"alpha": 2.0}, 128), ({}, 64)]
    for words, want in cases:
        got = fp.matmul(codes, codes.T, accumulate=UNIT, **words)
        assert_bits_equal(got, np.broadcast_to(f32(want), (3, 3)))
    c = np.ones((3, 3), f32)
    assert_bits_equal(fp.matmul(codes, codes.T, c, accumulate=UNIT, alpha=2, beta=0.5), np.full((3, 3), f32(128.5)))


def caches() -> dict[str, Any]:
    """Every cache of the package that is loaded, by a name of its own."""
    found = {}
    for name in [name for name in sys.modules if name.partition(".")[0] == "fpsim"]:
        for value in list(vars(sys.modules[name]).values()):
            if hasattr(value, "cache_info"):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


SR: dict[str, Any] = {"rounding": "stochastic"}
SEEDED: list[Callable[[int], Any]] = [
    *(partial(lambda function, words, seed: function(X, "e4m3", **words, seed=seed), function, words)
      for function in (fp.encode, fp.quantize, fp.cast, fp.encode_scaled, fp.quantize_scaled) for words in (SR, {})),
    lambda seed: fp.encode(X[:, :4].astype(np.float16), fp.E5M2, **SR, seed=seed),
    lambda seed: fp.quantize(X.astype(np.float64), "fp16", **SR, seed=seed),
    lambda seed: fp.encode_scaled(X[:, :4], "int8", scales=2.0, **SR, seed=seed),
    *(partial(lambda words, seed: fp.add(X8, X8, fmt="e4m3", **words, seed=seed), words) for words in (SR, {})),
    lambda seed: fp.fma(X8, X8, X8, fmt="e4m3", **SR, seed=seed, flags=True),
    lambda seed: fp.multiply(np.tile(X8, 128), X8[0, 0], fmt="e4m3", **SR, seed=seed, flags="any"),
    lambda seed: fp.maximum(np.tile(X8, 128), X8[0, 0], fmt="e4m3", **SR, seed=seed),
    lambda seed: fp.add(np.tile(X8, 256), X8[0, 0], fmt="e4m3", seed=seed),
    lambda seed: fp.convert(X, "bf16", **SR, seed=seed),
    lambda seed: fp.to_int(X[:, :4], np.int32, **SR, seed=seed),
    lambda seed: fp.from_int(np.arange(9), "e4m3", **SR, seed=seed),
    *(partial(lambda kind, words, seed: fp.sum(X, accumulate=kind("bf16", **words, seed=seed)), kind, words)
      for kind in (fp.Sequential, fp.FusedMultiplyAdd, fp.Pairwise, fp.Chunked, fp.Exact) for words in (SR, {})),
    *(partial(lambda words, seed: fp.matmul(X8, X8.T, accumulate=fp.Sequential("bf16", **words, seed=seed), fmt="e4m3"),
              words) for words in (SR, {})),
    lambda seed: fp.analysis.error(ODD, "e4m3", seed=seed),
]  # fmt: skip


def in_a_block(seed: int) -> Any:
    with fp.rounding("stochastic", seed=seed):
        return (fp.array([0.3, 1.7], fp.E4M3) * 0.3).codes


@pytest.mark.parametrize("call", [*SEEDED, in_a_block])
def test_a_fresh_seed_finds_every_plan_that_another_one_made(call: Callable[[int], Any]) -> None:
    call(1)
    made = {name: cache.cache_info().misses for name, cache in caches().items()}
    for seed in (2, 1 << 63, 2):
        call(seed)
    assert {name: cache.cache_info().misses for name, cache in caches().items()} == made


def test_seeds_of_one_plan_draw_their_own_words() -> None:
    x, codes = np.linspace(1, 2, 4096, dtype=f32), np.full(4096, 0x39, np.uint8)
    for draw in (
        lambda seed: fp.encode(x, "e4m3", **SR, seed=seed),
        lambda seed: fp.quantize(x, "e4m3", **SR, seed=seed),
        lambda seed: fp.encode_scaled(x, "e4m3", **SR, seed=seed).codes,
        lambda seed: fp.multiply(codes, codes, fmt="e4m3", **SR, seed=seed),
        lambda seed: fp.multiply(np.tile(codes, 4), codes[0], fmt="e4m3", **SR, seed=seed),
        lambda seed: fp.convert(x, "bf16", **SR, seed=seed),
    ):
        first, other, again = (draw(seed) for seed in (1, 2, 1))
        assert_bits_equal(again, first)
        assert np.mean(first != other) > 0.1
        forget()
        assert_bits_equal(draw(2), other)


ONE_TERM = next(unit for unit in float_units() if unit.terms == 1 and unit.a.fmt == unit.d.fmt == fp.FP32)
SEQUENTIAL = fp.Sequential("bf16")
REFUSED: list[tuple[Callable[[Any], Any], Any, Any, str]] = [
    (lambda seed: fp.encode(X, "e4m3", rounding="stochastic", seed=seed), 1, True, "seed must be an integer"),
    (lambda n: fp.encode(X, "e4m3", random_bits=n), 1, True, "random_bits must be an integer"),
    (lambda n: fp.encode(X, "e4m3", random_bits=n), 8, 8.0, "random_bits must be an integer"),
    (lambda s: fp.encode_scaled(X, "e4m3", rounding="stochastic", seed=s), 1, True, "seed must be an integer"),
    (lambda f: fp.encode_scaled(X, f), "e4m3", ["e4m3"], "format must be one of"),
    (lambda s: fp.encode_scaled(X, "e4m3", s), PLAIN, {}, "scaling must be an fp.Scaling"),
    (lambda s: fp.encode_scaled(X, "e4m3", s), PLAIN, "TILE", "scaling must be one of"),
    (lambda f: fp.encode_scaled(X, f), "e4m3", "fp32", "element formats have up to 16 bits"),
    (lambda p: fp.matmul(X, X.T, accumulate=ONE_TERM, promote=p), 1, True, "promote must be a number of terms"),
    (lambda p: fp.matmul(X8, X8.T, accumulate=UNIT, promote=p), 32, [32], "promote must be a number of terms"),
    (lambda o: fp.matmul(X8, X8.T, accumulate=UNIT, scale_order=o), None, "c_first", "scale_order must be one of"),
    (lambda s: fp.matmul(X8, X8.T, accumulate=UNIT, strict=s), True, 1, "strict must be True or False"),
    (lambda f: fp.matmul(X8, X8.T, accumulate=UNIT, fmt=f), None, "e4m3", "fmt is for accumulators"),
    (lambda f: fp.matmul(X8, X8.T, accumulate=SEQUENTIAL, fmt=f), "e4m3", None, "say which format"),
    (lambda f: fp.matmul(X8, X8.T, accumulate=SEQUENTIAL, fmt=f), "e4m3", "e2m1", "must lie in 0 .. 0xf"),
    (lambda x: fp.matmul(x, X8.T, accumulate=SEQUENTIAL, fmt="e4m3"), X8, X8.astype(f32), "stores FP32"),
    (lambda x: fp.matmul(x, X8.T, accumulate=UNIT), X8, X8.astype(f32), "got a as float32"),
    (lambda x: fp.matmul(x, X8.T, accumulate=UNIT), X8, X8[0], "two axes"),
    (lambda a: fp.matmul(X8, X8.T, accumulate=a), UNIT, fp.E4M3, "accumulate must be a matrix unit"),
    (lambda a: fp.matmul(X8, X8.T, accumulate=a), UNIT.name, "hopper_e4m3_f33", "accumulate must be one of"),
    (lambda f: fp.sum(X8, accumulate=SEQUENTIAL, fmt=f), "e4m3", "e2m1", "must lie in 0 .. 0xf"),
    (lambda a: fp.sum(X8, accumulate=SEQUENTIAL, fmt="e4m3", axis=a), None, 2, "axis must be one of"),
    (lambda s: fp.matmul(X8, X8.T, accumulate=UNIT, schedule=s), SCHEDULES[0], "2xacc", "schedule must be one of"),
    (lambda s: fp.matmul(X8, X8.T, accumulate=UNIT, schedule=s), None, SCHEDULES[1], "multiples of 16"),
    (lambda s: fp.matmul(X8, X8.T, accumulate=UNIT, schedule=SCHEDULES[1], strict=s), False, True, "multiples of 16"),
    (lambda b: fp.matmul(X8, X8, accumulate=UNIT) if b else fp.matmul(X8, X8.T, accumulate=UNIT), 0, 1, "agree in K"),
]  # fmt: skip


@in_turn("call, taken, refused, sentence", REFUSED)
def test_a_call_that_was_taken_does_not_let_the_next_one_pass(
    call: Callable[[Any], Any], taken: Any, refused: Any, sentence: str
) -> None:
    call(taken)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=sentence):
            call(refused)


def test_formats_are_equal_where_all_their_fields_are() -> None:
    one, same = fp.Format("mine", 4, 3), fp.Format("mine", 4, 3)
    assert one is not same
    assert one == same
    assert len({one, same}) == 1
    others = [
        fp.Format("yours", 4, 3), fp.Format("mine", 3, 3), fp.Format("mine", 4, 2), fp.Format("mine", 4, 3, bias=8),
        fp.Format("mine", 4, 3, signed=False), fp.Format("mine", 4, 3, nan="top"),
        fp.Format("mine", 4, 3, nan="negative_zero"), fp.Format("mine", 4, 3, ties_to_even_code=True),
        fp.Format("mine", 4, 3, source="elsewhere"),
    ]  # fmt: skip
    assert all(one != other for other in others)
    assert len({one, *others}) == len(others) + 1
    finite, infinite = (fp.Format("mine", 4, 3, nan="top", infinities=has) for has in (False, True))
    assert finite != infinite
    assert hash(finite) == hash(infinite)  # so that their fields decide
    assert one != "mine"


@pytest.mark.parametrize("thing", [fp.E4M3, PLAIN, UNIT])
def test_no_hash_travels_to_another_process(thing: Any) -> None:
    hash(thing)
    again = pickle.loads(pickle.dumps(thing))
    assert set(vars(again)) == {field.name for field in fields(thing)}
    assert again == thing


def test_a_remark_of_a_library_points_at_the_call_of_matmul() -> None:
    a, b = np.full((2048, 64), 0x3C00, np.uint16), np.full((64, 2), 0x3C00, np.uint16)
    split = fp.schedules.cublas("sm_90")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            fp.matmul(a[:1], b, accumulate="hopper_f16_f32", schedule=split, strict=False)
    assert len(caught) == 2
    assert {warning.filename for warning in caught} == {__file__}
