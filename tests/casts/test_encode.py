"""Encoding: every value is rounded once, as exact fractions say, in every mode and under every policy."""

from __future__ import annotations

import hashlib
from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.casts import pipelines
from fpsim.formats.named import DTYPES
from fpsim.testing import assert_bits_equal
from tests.kit.samples import (
    NARROW,
    P3109,
    STRANGE,
    all_float16,
    any_float,
    edges,
    exactly,
    float32_patterns,
    float64_patterns,
    formats,
)
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import casts

Array = npt.NDArray[Any]
ALL = [*NARROW, *P3109, *STRANGE]
modes = pytest.mark.parametrize("rounding", casts.MODES)


def subnormals_of(fmt: fp.Format) -> tuple[str, ...]:
    """Treatments of subnormals; flushing is not defined where every value is subnormal, the largest too."""
    return casts.SUBNORMALS if fmt.max >= fmt.smallest_normal else ("keep",)


def options(fmt: fp.Format) -> list[tuple[str, str]]:
    """Every overflow word with every treatment of subnormals."""
    return [(overflow, subnormals) for overflow in casts.OVERFLOWS for subnormals in subnormals_of(fmt)]


def assert_encodes_as_the_oracle(x: Array, fmt: fp.Format, rounding: str, overflow: str, subnormals: str) -> None:
    got = fp.encode(x, fmt, rounding=rounding, overflow=overflow, subnormals=subnormals)
    exact = exactly(x)
    if str(x.dtype).endswith("fnuz"):
        exact[np.isnan(exact)] = np.nan  # the one NaN of these formats has no sign
    want = casts.encode_all(exact, fmt, rounding, overflow, subnormals)
    try:
        assert_bits_equal(got, want)
    except AssertionError as error:
        i = int(np.argmax(got != want))
        call = f"fp.encode(np.array([{float(x[i])!r}], '{x.dtype}'), {fmt!r}, {rounding=}, {overflow=}, {subnormals=})"
        raise AssertionError(f"{call}: {error}") from None


# ---- complete sweeps


@in_turn("fmt", ALL)
@in_turn("rounding", casts.MODES)
@sweep("whole", False, True)
def test_every_float16_encodes_as_the_oracle_says_under_every_policy(
    fmt: fp.Format, rounding: str, whole: bool
) -> None:
    policies = options(fmt) if whole else options(fmt)[casts.MODES.index(rounding) :: 6]  # all six modes see every one
    for overflow, subnormals in policies:
        assert_encodes_as_the_oracle(all_float16(), fmt, rounding, overflow, subnormals)


@in_turn("fmt", ALL)
@in_turn("rounding", casts.MODES)
@sweep("whole", False, True)
def test_every_value_and_every_tie_encodes_as_the_oracle_says(fmt: fp.Format, rounding: str, whole: bool) -> None:
    x = edges(fmt)
    policies = options(fmt) if x.size < 10_000 else [("nonfinite", "keep"), ("saturate", "flush")]
    if not whole:  # two or three of the six modes see a policy
        policies = policies[casts.MODES.index(rounding) % min(3, len(policies)) :: 3]
    for overflow, subnormals in policies:
        assert_encodes_as_the_oracle(x, fmt, rounding, overflow, subnormals)


@in_turn("fmt", ALL)
@in_turn("rounding", casts.MODES)
def test_floats_of_every_exponent_encode_as_the_oracle_says(fmt: fp.Format, rounding: str) -> None:
    for x in (float32_patterns(1, 4000), float64_patterns(2, 4000)):
        for overflow in ("nonfinite", "saturate_finite"):
            assert_encodes_as_the_oracle(x, fmt, rounding, overflow, "keep")


@in_turn("dtype", DTYPES.values())
def test_every_source_dtype_encodes_its_exact_values(dtype: np.dtype[Any]) -> None:
    bits = fp.format(dtype).bits
    codes = np.arange(1 << min(bits, 16)) if bits <= 16 else np.arange(1 << 16) * 65_537
    x = codes.astype(f"u{dtype.itemsize}").view(dtype)
    for fmt in (fp.E4M3, fp.E3M2, fp.FP16, fp.BF16, fp.E8M0, fp.Format("deep", 5, 10, bias=1060)):
        assert_encodes_as_the_oracle(x, fmt, "nearest_even", "nonfinite", "keep")


@pytest.mark.slow
def test_every_float32_encodes_to_e4m3_as_ml_dtypes_does_with_a_known_digest() -> None:
    chunk = 1 << 22
    digest = hashlib.sha256()
    for start in range(0, 1 << 32, chunk):
        x = np.arange(start, start + chunk, dtype=np.uint64).astype(np.uint32).view(np.float32)
        codes = fp.encode(x, fp.E4M3, **fp.policy("ml_dtypes"))
        with np.errstate(all="ignore"):
            assert_bits_equal(codes, x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))  # the signs of NaN too
        digest.update(codes.tobytes())
    assert digest.hexdigest() == "f0ca981b8f7d111cd2446d1e844d3f8b34a493306d041ae9a1a29b0436866691"


# ---- formats wider than 16 bits


@modes
def test_float32_codes_are_the_bits_of_a_float32(rounding: str) -> None:
    x = float32_patterns(3, 100_000)
    x = x[~np.isnan(x)]
    assert_bits_equal(fp.encode(x, fp.FP32, rounding=rounding), x.view(np.uint32))
    assert_bits_equal(fp.encode(x.astype(np.float64), fp.FP32, rounding=rounding), x.view(np.uint32))
    assert_bits_equal(fp.encode(x, fp.FP64, rounding=rounding), x.astype(np.float64).view(np.uint64))


def test_float64_rounds_to_float32_as_numpy_does() -> None:
    with np.errstate(all="ignore"):
        ties = float32_patterns(5, 200_000).astype(np.float64) * (1 + 2.0**-25)
    x = np.concatenate([float64_patterns(4, 200_000), ties, [2.0**-150, 2.0**-149 * 1.5, 3.4028235677973366e38]])
    with np.errstate(all="ignore"):
        assert_bits_equal(fp.encode(x, fp.FP32).view(np.float32), x.astype(np.float32))
    assert_bits_equal(fp.encode(x, fp.FP64).view(np.float64), x)


@modes
@pytest.mark.parametrize("fmt", [fp.FP32, fp.TF32, fp.FP64], ids=str)
def test_wide_formats_encode_as_fractions_say(fmt: fp.Format, rounding: str) -> None:
    with np.errstate(all="ignore"):
        ties = float32_patterns(7, 40).astype(np.float64) * (1 + 2.0**-25)
        largest = fmt.max + np.array([0, fmt.ulp(fmt.max) / 2, fmt.ulp(fmt.max)], np.float64)
    smallest = fmt.smallest_subnormal * np.array([0.25, 0.5, 0.75, 1.5], np.float64)
    x = np.concatenate([float64_patterns(6, 40), ties, largest, smallest, [0, np.inf, np.nan]])
    x = np.concatenate([x, -x])
    for overflow in ("nonfinite", "saturate", "saturate_finite"):
        got = fp.encode(x, fmt, rounding=rounding, overflow=overflow)
        want = [casts.encode(v, fmt, rounding, overflow) for v in x.tolist()]
        assert_bits_equal(got, np.array(want, fmt.storage))


# ---- anything at all, against fractions


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_float64_to_any_format_rounds_as_fractions_say(data: st.DataObject) -> None:
    fmt = data.draw(formats() | st.sampled_from(ALL))
    rounding, overflow = data.draw(st.sampled_from(casts.MODES)), data.draw(st.sampled_from(casts.OVERFLOWS))
    subnormals = data.draw(st.sampled_from(subnormals_of(fmt)))
    x = data.draw(st.lists(any_float(fmt), min_size=1, max_size=8))
    got = fp.encode(np.array(x), fmt, rounding=rounding, overflow=overflow, subnormals=subnormals)
    assert_bits_equal(got, np.array([casts.encode(v, fmt, rounding, overflow, subnormals) for v in x], fmt.storage))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_float32_to_any_format_rounds_as_fractions_say(data: st.DataObject) -> None:
    fmt = data.draw(formats() | st.sampled_from(ALL))
    rounding, overflow = data.draw(st.sampled_from(casts.MODES)), data.draw(st.sampled_from(casts.OVERFLOWS))
    subnormals = data.draw(st.sampled_from(subnormals_of(fmt)))
    drawn = data.draw(st.lists(any_float(fmt) | st.floats(width=32), min_size=1, max_size=8))
    with np.errstate(all="ignore"):
        x = np.array(drawn).astype(np.float32)
    got = fp.encode(x, fmt, rounding=rounding, overflow=overflow, subnormals=subnormals)
    want = [casts.encode(v, fmt, rounding, overflow, subnormals) for v in x.tolist()]
    assert_bits_equal(got, np.array(want, fmt.storage))


@given(st.sampled_from(ALL), st.floats(width=64))
@example(fp.E4M3, 1 + 2.0**-4 + 2.0**-40)  # ml_dtypes and torch round this to float32 first and then down to 1
@example(fp.BF16, 1 + 2.0**-8 + 2.0**-45)
@example(fp.FP16, 1 + 2.0**-11 + 2.0**-45)
@settings(deadline=None)
def test_float64_is_rounded_once(fmt: fp.Format, x: float) -> None:
    assert int(fp.encode(np.float64(x), fmt)) == casts.encode(x, fmt)


@given(formats(), st.floats(width=64))
@settings(max_examples=60, deadline=None)
def test_up_and_down_mirror_each_other(fmt: fp.Format, x: float) -> None:
    if not fmt.signed or np.isnan(x):
        return
    up, down = fp.encode(np.float64(x), fmt, rounding="up"), fp.encode(np.float64(-x), fmt, rounding="down")
    assert_bits_equal(fp.decode(up, fmt, np.float64) + 0.0, 0.0 - fp.decode(down, fmt, np.float64))


# ---- second witnesses


def witness_inputs(fmt: fp.Format) -> Array:
    """float32 inputs: every float16, random patterns, every value and tie that float32 holds with its neighbours."""
    with np.errstate(all="ignore"):
        near = edges(fmt).astype(np.float32)
        near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
        x = np.concatenate([all_float16().astype(np.float32), float32_patterns(8, 40_000), near])
    if fmt == fp.E8M0:  # ml_dtypes and torch send these to 2**-126, although 2**-127 is nearer
        x = x[~((np.abs(x) > 2.0**-127) & (np.abs(x) < 1.5 * 2.0**-127))]
    return x


@in_turn("fmt", [fmt for fmt in NARROW if fmt.dtype is not None])
def test_ml_dtypes_and_numpy_agree_on_float32_inputs(fmt: fp.Format) -> None:
    x = witness_inputs(fmt)
    assert fmt.dtype is not None
    with np.errstate(all="ignore"):
        want = x.astype(fmt.dtype)
    assert_bits_equal(fp.cast(x, fmt, **fp.policy("ml_dtypes")), want)


def test_numpy_agrees_on_float64_to_float16() -> None:
    x = np.concatenate([edges(fp.FP16), float64_patterns(9, 100_000)])
    with np.errstate(all="ignore"):
        assert_bits_equal(fp.cast(x, fp.FP16), x.astype(np.float16))


TORCH = {
    "float8_e4m3fn": fp.E4M3,
    "float8_e5m2": fp.E5M2,
    "float8_e4m3fnuz": fp.E4M3FNUZ,
    "float8_e5m2fnuz": fp.E5M2FNUZ,
    "float8_e8m0fnu": fp.E8M0,
    "float16": fp.FP16,
    "bfloat16": fp.BF16,
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_agrees_on_float32_inputs(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is the witness")
    fmt = TORCH[name]
    x = witness_inputs(fmt)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    policy = "torch" if version >= (2, 12) else "torch<2.12"
    there = torch.from_numpy(x).to(getattr(torch, name))
    codes = there.view(torch.uint8 if fmt.bits == 8 else torch.int16).numpy().view(fmt.storage)
    assert_bits_equal(fp.cast(x, fmt, **fp.policy(policy)), codes.view(fmt.dtype or "V"))


GFLOAT = {
    fp.E4M3: gfloat.formats.format_info_ocp_e4m3,
    fp.E5M2: gfloat.formats.format_info_ocp_e5m2,
    fp.E2M1: gfloat.formats.format_info_ocp_e2m1,
    fp.E2M3: gfloat.formats.format_info_ocp_e2m3,
    fp.E3M2: gfloat.formats.format_info_ocp_e3m2,
    fp.FP16: gfloat.formats.format_info_binary16,
    fp.BF16: gfloat.formats.format_info_bfloat16,
    **{
        fp.format(f"p3109_k{k}p{p}s{d}"): gfloat.formats.format_info_p3109(
            k, p, domain=gfloat.Domain.Extended if d == "e" else gfloat.Domain.Finite
        )
        for k, p, d in ((3, 1, "e"), (4, 2, "f"), (6, 3, "e"), (8, 1, "e"), (8, 3, "e"), (8, 4, "f"), (12, 5, "e"))
    },
}
GFLOAT_MODES = {
    "nearest_even": gfloat.RoundMode.TiesToEven,
    "nearest_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}


@pytest.mark.parametrize("rounding", GFLOAT_MODES)
@in_turn("fmt", GFLOAT)
def test_gfloat_agrees_on_float64_inputs(fmt: fp.Format, rounding: str) -> None:
    x = np.concatenate([edges(fmt)[:: 1 if fmt.bits <= 12 else 17], float64_patterns(10, 5000)])
    for saturates in (True, False):
        if not saturates and not (fmt.has_nan or fmt.has_infinity):
            continue  # gfloat raises instead
        if not fmt.has_nan:
            x = x[~np.isnan(x)]
        with np.errstate(all="ignore"):
            want = gfloat.round_ndarray(GFLOAT[fmt], x, GFLOAT_MODES[rounding], sat=saturates)
        got = fp.quantize(x, fmt, rounding=rounding, overflow="saturate" if saturates else "nonfinite")
        assert_bits_equal(got, want)


@pytest.mark.parametrize("rounding", casts.MODES)
def test_every_exponent_becomes_e8m0_as_the_oracle_says_in_every_mode(rounding: str) -> None:
    fractions = np.array([0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFF], np.uint32)
    x = (np.arange(512, dtype=np.uint32)[:, None] << np.uint32(23) | fractions).reshape(-1).view(np.float32)
    tiny = np.exp2(np.arange(-149.0, -120))[:, None] * [1, 1.25, 1.5, 1.75]  # subnormal float32 numbers too
    for values in (x, tiny.astype(np.float32).ravel(), exactly(x), tiny.ravel()):
        for overflow in casts.OVERFLOWS:
            assert_encodes_as_the_oracle(values, fp.E8M0, rounding, overflow, "keep")


def test_many_arrays_get_a_kernel_with_the_formats_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    size = pipelines.SHORT + 1
    x = np.random.default_rng(5).standard_normal(size).astype(np.float32)
    fmt = fp.E4M3
    first = fp.encode(x, fmt), fp.quantize(x, fmt), fp.decode(fp.encode(x, fmt), fmt)
    monkeypatch.setattr(pipelines, "MANY", 1)
    then = fp.encode(x, fmt), fp.quantize(x, fmt), fp.decode(fp.encode(x, fmt), fmt)
    for got, want in zip(then, first, strict=True):
        assert_bits_equal(got, want)


def test_constants_are_compiled_in_after_many_elements_or_for_a_large_array() -> None:
    fields, size = object(), pipelines.LARGE - 1
    constants = pipelines.Constants(fields, fp.E4M3, long=False)
    uses = [constants.after(size) for _ in range(pipelines.MANY // size + 2)]
    assert uses.index(fields) == pipelines.MANY // size
    assert uses[-1] is fields
    assert pipelines.Constants(fields, fp.E4M3, long=False).after(pipelines.LARGE) is fields
    assert pipelines.Constants(fields, fp.E4M3, long=True).after(1) is fields
    assert pipelines.Constants(fields, fp.Format("mine", 4, 3), long=True).after(pipelines.LARGE) is None
