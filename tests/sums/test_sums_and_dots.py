"""fp.sum and fp.dot: results, figures of papers, and input that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.products.reduce import dot
from fpsim.products.reduce import sum as fp_sum
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential
from fpsim.sums.product import accumulator_product
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import casts
from tests.oracles import sums as accumulator_oracle
from tests.oracles.arithmetic import read
from tests.sums.checks import assert_same, drawn, rule_of

Array = npt.NDArray[Any]


KINDS: list[Callable[..., Accumulator]] = [Sequential, FusedMultiplyAdd, Pairwise, Chunked, Exact]


MODES = [*casts.MODES, "stochastic"]


UNSIGNED = fp.format("p3109_k8p3ue")


def floats(values: Any) -> Array:
    """A float32 array."""
    return np.array(values, np.float32)


def wrong(value: Any) -> Any:
    """Something that the type checker would not let through."""
    return value


def made(kind: Callable[..., Accumulator], fmt: fp.Format, rounding: str, **words: Any) -> Accumulator:
    """An accumulator, with a seed where it needs one."""
    if rounding == "stochastic":
        words["seed"] = 0x123456789
    if kind is Chunked:
        words.setdefault("chunk", 4)
    return kind(fmt, rounding=rounding, **words)


# ---- sums and dot products


@pytest.mark.parametrize("fmt", [fp.FP16, fp.E4M3, fp.FP32, fp.E4M3FNUZ, UNSIGNED], ids=str)
def test_every_rounding_of_a_sum_is_the_oracles(fmt: fp.Format) -> None:
    generator = np.random.default_rng(14)
    for number, rounding in enumerate(MODES):
        source = (fp.FP16, fp.FP64, fp.E5M2, fp.FP32, fp.BF16)[number % 5]
        x = (
            drawn(source, (3, 9, 2), generator)
            if source.bits < 64
            else generator.normal(size=(3, 9, 2)).view(np.uint64)
        )
        for kind in KINDS:
            accumulator = made(kind, fmt, rounding)
            for axis in (None, 1, -1):
                got = np.asarray(fp_sum(x, accumulate=accumulator, fmt=source, axis=axis))
                lines = x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
                rule = rule_of(accumulator)
                want = [
                    accumulator_oracle.total(rule, [read(source, int(code)) for code in line], None, i)
                    for i, line in enumerate(lines)
                ]
                assert_same(got.view(fmt.storage).reshape(-1), np.array(want, fmt.storage), accumulator, f"{source}")


@pytest.mark.parametrize("fmt", [fp.BF16, fp.FP32, fp.E4M3, UNSIGNED, fp.FP64], ids=str)
def test_dot_products_are_products_of_matrices(fmt: fp.Format) -> None:
    generator = np.random.default_rng(15)
    formats = (fp.FP16, fp.FP16) if fmt != fp.FP64 else (fp.FP64, fp.FP64)
    x, y = (fp.encode(generator.normal(size=shape), formats[0]) for shape in ((4, 1, 11), (3, 11)))
    for kind in KINDS:
        for rounding in ("nearest_even",) if fmt == fp.FP64 else ("nearest_even", "down"):
            accumulator = made(kind, fmt, rounding)
            want = accumulator_product(x[:, 0], y.T.copy(), None, accumulator, formats=formats)
            got = dot(x, y, accumulate=accumulator, fmt=formats[0])
            assert got.dtype == (fmt.dtype or fmt.storage)
            assert_same(got.view(fmt.storage), want, accumulator, "dot")
        if fmt != fp.FP64:
            check_dot_words(made(kind, fmt, "stochastic"), x[:, 0], y[:1], formats)


def check_dot_words(accumulator: Accumulator, x: Array, y: Array, formats: tuple[fp.Format, fp.Format]) -> None:
    """Random words of a dot product go by its place in the result."""
    got = dot(x, y, accumulate=accumulator, fmt=formats)
    want = accumulator_product(x, y.T.copy(), None, accumulator, formats=formats)[:, 0]
    assert_same(got.view(want.dtype), want, accumulator, "words of dot")


def test_results_have_the_dtype_of_their_format() -> None:
    x = floats([1, 2, 3])
    assert type(fp_sum(x, accumulate=Sequential("fp16"))) is np.float16
    assert type(fp_sum(x, accumulate=Chunked("fp16", outer="bf16"))) is ml_dtypes.bfloat16
    assert type(dot(x, x, accumulate=Exact("fp64"))) is np.float64
    codes = fp_sum(np.stack([x, x]), accumulate=Exact("p3109_k8p4se"), axis=0)
    assert codes.dtype == np.uint8
    assert fp.decode(codes, "p3109_k8p4se").tolist() == [2, 4, 6]
    assert fp_sum(np.zeros((0, 2), np.float32), accumulate=Exact("fp32"), axis=0).tolist() == [0, 0]
    assert fp_sum(np.float32(2), accumulate=Sequential("fp32")) == 2


def test_a_matrix_unit_adds_a_dot_product() -> None:
    generator = np.random.default_rng(16)
    x, y = (fp.cast(generator.normal(size=(5, 64)), fp.E4M3) for _ in range(2))
    from fpsim.instructions.dot_add import dot_add

    want = dot_add(x, y, None, "hopper_e4m3_f32").view(np.float32)
    assert_bits_equal(dot(x, y, accumulate="hopper_e4m3_f32"), want)
    assert dot(x[0], y[0], accumulate="hopper_e4m3_f32") == want[0]


# ---- figures of papers


SIXTEEN = fp.Format("FP16_1_6_9", 6, 9)  # the FP16 of Wang et al., NeurIPS 2018


TERMS = 65536


def wang(seed: int) -> Array:
    """Their Figure 3b: uniform numbers of mean 1 and standard deviation 1."""
    half = 3.0**0.5
    return np.random.default_rng(seed).uniform(1 - half, 1 + half, TERMS)


def summed(x: Array, accumulator: Accumulator) -> float:
    """A sum as a float."""
    code = np.asarray(fp_sum(x, accumulate=accumulator)).view(accumulator.result_format.storage)
    return accumulator.result_format.value_of(int(code))


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_to_nearest_stops_where_wang_et_al_say(seed: int) -> None:
    x = wang(seed)
    assert summed(x, Sequential(SIXTEEN)) == 4096
    assert summed(x, Sequential("bf16")) == 1024
    assert summed(x, Sequential("fp16")) == 8192
    assert summed(x, Chunked("bf16", chunk=64)) == 32768


def test_chunks_and_stochastic_rounding_keep_a_sum_going() -> None:
    sums = [wang(seed) for seed in range(12)]
    exact = np.array([x.sum() for x in sums])
    chunked = np.array([summed(x, Chunked(SIXTEEN, chunk=64)) for x in sums])
    assert np.all(np.abs(chunked / exact - 1) < 0.01)
    assert abs(chunked.mean() / exact.mean() - 1) < 0.002  # 65532 of 65528 in facts of the field
    stochastic = np.array([summed(x, Sequential(SIXTEEN, rounding="sr", seed=i)) for i, x in enumerate(sums)])
    assert np.all(np.abs(stochastic / exact - 1) < 0.1)
    assert abs(stochastic.mean() / exact.mean() - 1) < 0.03


def test_stochastic_rounding_is_worse_in_short_sums_and_better_in_long_ones() -> None:
    # Sums of U[0, 1) in BF16; relative errors of 100, 1000 and 10000 terms to nearest 0.0077, 0.487 and 0.949,
    # stochastically 0.0118, 0.033 and 0.042.
    errors: dict[str, list[float]] = {"nearest_even": [], "stochastic": []}
    for count in (100, 1000, 10000):
        for rounding, found in errors.items():
            relative = []
            for seed in range(40):
                x = np.random.default_rng(seed).random(count)
                relative.append(abs(summed(x, Sequential("bf16", rounding=rounding, seed=seed)) / x.sum() - 1))
            found.append(float(np.mean(relative)))
    nearest, stochastic = errors["nearest_even"], errors["stochastic"]
    assert nearest[0] < stochastic[0] < 0.03
    assert 0.4 < nearest[1] < 0.6
    assert nearest[2] == pytest.approx(0.949, abs=0.01)
    assert stochastic[1] < 0.1
    assert stochastic[2] < 0.15


# ---- input that is refused


@in_turn(
    "call, message",
    [
        (lambda: Sequential("e8m0"), "an accumulator needs a format with a zero to start from; got E8M0"),
        (lambda: Sequential("fp16", rounding="sr"), "stochastic rounding needs a seed"),
        (lambda: Sequential("fp16", seed=-1), "seed must be an integer in 0 .. 2"),
        (lambda: Sequential("fp16", rounding="nearest"), "Did you mean 'nearest_even'"),
        (lambda: Sequential("fp16", subnormals="drop"), "subnormals must be one of keep, flush; got 'drop'"),
        (lambda: Sequential("fp16", overflow="wrap"), "overflow must be one of"),
        (lambda: Sequential("fp16", random_bits=0), "random_bits must be an integer in 1 .. 32; got 0"),
        (lambda: Sequential("fp64", rounding="up"), "FP64 accumulates with rounding='nearest_even'"),
        (lambda: Exact("fp64", rounding="sr", seed=1), "stochastic rounding works for results of up to 32 bits"),
        (lambda: Chunked("fp16", chunk=0), "chunk must be an integer >= 1, the terms of a run; got 0"),
        (lambda: Chunked("fp16", outer="e8m0"), "an accumulator needs a format with a zero"),
        (lambda: dot(np.ones(3), np.ones(3), accumulate=Sequential("fp32")), "products of FP64 are added by"),
        (lambda: dot(np.ones(3), np.ones(3), accumulate=Chunked("fp64", 2, "fp32")), "products of FP64 are added by"),
        (lambda: dot(floats([1]), floats([1, 2]), accumulate=Sequential("fp32")), "with the same K; got"),
        (lambda: dot(floats([1, 2, 3]), floats([1, 2]), accumulate=Sequential("fp32")), "with the same K; got"),
        (lambda: dot(np.float32(1), np.float32(1), accumulate=Sequential("fp32")), "with the same K; got"),
        (lambda: fp_sum(floats([1]), accumulate=Sequential("fp32"), axis=1), "axis must be one of the 1 axes of x"),
        (lambda: fp_sum(np.array([1], np.uint8), accumulate=Sequential("fp32")), "x holds integers: say which format"),
        (lambda: dot(floats([1]), floats([1]), accumulate="hopper_e4m3_f32", fmt="e4m3"), "leave fmt out"),
        (
            lambda: accumulator_product(
                np.zeros((2, 3), np.uint8), np.zeros((2, 3), np.uint8), None, Exact("fp32"), formats=(fp.E4M3, fp.E4M3)
            ),
            "needs shapes (M, K) and (K, N); got",
        ),
    ],
)  # fmt: skip
def test_bad_input_gets_one_clear_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: fp_sum(floats([1]), accumulate=wrong("fp32")),
            "accumulate must be Sequential, FusedMultiplyAdd, Pairwise",
        ),
        (
            lambda: dot(floats([1]), floats([1]), accumulate=wrong(fp.FP32)),
            "a matrix unit, its name, or an accumulator; got",
        ),
        (lambda: fp_sum(floats([[1]]), accumulate=Exact("fp32"), axis=wrong((0, 1))), "axis must be an integer"),
        (lambda: fp_sum(["a"], accumulate=Exact("fp32")), "x must be unsigned codes"),
        (lambda: Accumulator("fp32"), "use Sequential, FusedMultiplyAdd"),
    ],
)
def test_things_of_another_kind_get_one_clear_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert message in str(caught.value)


def test_an_accumulator_shows_what_makes_it() -> None:
    shown = "Chunked(FP16, chunk=32, outer=FP32, rounding='stochastic', seed=5, overflow='saturate', random_bits=8)"
    words: dict[str, Any] = {"rounding": "sr", "seed": 5, "overflow": "saturate", "random_bits": 8}
    assert repr(Chunked("fp16", 32, "fp32", **words)) == shown
    assert Sequential("bf16") == Sequential(fp.BF16, rounding="RNE")
    assert len({Sequential("bf16"), Sequential("bf16"), Pairwise("bf16")}) == 2


def test_dot_by_a_unit_takes_what_the_unit_takes() -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(2, 64)
    for dtype, unit in ((torch.bfloat16, "hopper_bf16_f32"), (torch.float8_e4m3fn, "hopper_e4m3_f32")):
        assert fp.dot(ones.to(dtype), ones.to(dtype), accumulate=unit).tolist() == [64, 64]
    encoded = fp.array(np.ones((1, 4), np.float32), "e4m3")
    assert fp.dot(encoded, encoded, accumulate="hopper_e4m3_f32").tolist() == [4]


def test_dot_by_a_unit_refuses_what_it_would_misread() -> None:
    half = fp.array(np.ones((1, 4), np.float32), "fp16")
    with pytest.raises(
        ValueError, match=r"got a as an array of FP16\. hopper_f16_f32.* take FP16\. a\.astype\(fpsim\.E4M3\)"
    ):
        fp.dot(half, half, accumulate="hopper_e4m3_f32")
    codes = np.full((1, 64), 0x38, np.uint8)
    with pytest.raises(ValueError, match="needs block scales, which dot does not take"):
        fp.dot(codes, codes, accumulate="blackwell_mxfp8_e4m3_f32")
    masked = np.ma.masked_array(np.ones((1, 2), np.float16), mask=[[False, True]])
    with pytest.raises(TypeError, match="a must not be masked"):
        fp.dot(masked, masked, accumulate="hopper_f16_f32")
    scaled = fp.encode_scaled(np.ones((1, 4), np.float32), "e4m3", fp.scalings.TENSOR)
    with pytest.raises(TypeError, match=r"a must be an array of float8_e4m3fn or codes of E4M3; got Scaled"):
        fp.dot(scaled, scaled, accumulate="hopper_e4m3_f32")


def test_numbers_of_terms_have_no_upper_limit() -> None:
    x = np.ones((2, 64), np.float16)
    assert fp.sum(x, accumulate=fp.Chunked("bf16", chunk=2**70)) == 128
    assert_bits_equal(
        fp.matmul(x, x.T, accumulate="hopper_f16_f32", promote=2**70), fp.matmul(x, x.T, accumulate="hopper_f16_f32")
    )


@pytest.mark.parametrize("how", [fp.Pairwise("fp32"), fp.Pairwise("fp32", rounding="stochastic", seed=0)])
def test_a_single_nan_has_no_sign(how: fp.Pairwise) -> None:
    minus_nan = np.full(1, 0xFE00, np.uint16).view(np.float16)
    assert np.asarray(fp.sum(minus_nan, accumulate=how)).view(np.uint32) == 0x7FC00000


def test_sums_in_formats_of_large_values_round_up_what_is_far_below_them() -> None:
    large, small = fp.Format("large", 1, 3, bias=-500), fp.Format("small", 2, 12, bias=500, signed=False, nan="top")
    codes = np.full((1, 3), 6843, np.uint16)  # products of 2**-1000 or so
    for rounding in ("up", "odd"):
        for kind, want in ((fp.Sequential, 3), (fp.Pairwise, 3), (fp.FusedMultiplyAdd, 3 if rounding == "up" else 1)):
            accumulate = kind(large, rounding=rounding)
            assert fp.dot(codes, codes, accumulate=accumulate, fmt=small).tolist() == [want], accumulate
