"""Attention with matrix units of other formats than the inputs', and with numbers near the limits of float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.scaling.file import save

A = fp.analysis


def draws() -> tuple[Any, Any, Any]:
    """Return q, k and v of two heads with 16 tokens."""
    source = np.random.default_rng(0)
    q, k, v = source.standard_normal((3, 2, 16, 32))
    return q, k, v


def operand(x: Any, unit: str) -> Any:
    """Return values as `fp.matmul` takes them for a unit: codes, or float32 and float64 values for TF32 and FP64."""
    fmt = fp.unit(unit).a.fmt
    dtype = {fp.FP64: np.float64, fp.TF32: np.float32}.get(fmt)
    return fp.cast(x, fmt) if dtype is None else x.astype(dtype)


@pytest.mark.parametrize(
    ("unit", "inputs", "probabilities"),
    [
        ("ampere_tf32_f32", "tf32", "tf32"), ("cdna3_xf32_f32", "tf32", "tf32"), ("ampere_f64_f64", "fp32", "fp32"),
        ("hopper_bf16_f32", "e4m3", "e4m3"), ("hopper_bf16_f32", "e4m3", "bf16"), ("hopper_f16_f32", "e5m2", "e5m2"),
        ("cdna3_fp8_f32", "e4m3fnuz", "e4m3fnuz"),
    ],
)  # fmt: skip
def test_a_unit_multiplies_the_inputs_values_bit_for_bit(unit: str, inputs: str, probabilities: str) -> None:
    formats: dict[str, Any] = {"inputs": inputs, "probabilities": probabilities}
    got = A.attention(*draws(), "fp32", accumulate=unit, scale=1.0, **formats).output[0]
    q, k, v = (fp.quantize(x[0].astype(np.float32), inputs) for x in draws())
    scores = fp.matmul(operand(q, unit), operand(k.T.copy(), unit), accumulate=unit).astype(np.float32)
    exps = np.exp((scores - scores.max(axis=1, keepdims=True)).astype(np.float64)).astype(np.float32)
    weights = fp.quantize(exps / fp.sum(exps, accumulate=fp.Sequential("fp32"), axis=1)[:, None], probabilities)
    want = fp.matmul(operand(weights, unit), operand(v, unit), accumulate=unit).astype(np.float32)
    fp.testing.assert_bits_equal(got, want)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inputs": "e5m2", "probabilities": "e4m3", "accumulate": "hopper_e4m3_f32"},
            "inputs must be in a format that",
        ),
        ({"inputs": "bf16", "probabilities": "bf16", "accumulate": "hopper_f16_f32"}, "Pass inputs='FP16'"),
        ({"inputs": "e4m3", "probabilities": "e5m2", "accumulate": "hopper_e4m3_f32"}, "probabilities must be in"),
        ({"accumulate": "blackwell_mxfp8_e4m3_f32"}, "a unit without block scales"),
        ({"probability_scale": 2.0**200}, "in 2\\*\\*-126"),
        ({"scale": 1e40}, "positive number of float32"),
        ({"scale": 1e-50}, "positive number of float32"),
    ],
)
def test_what_a_unit_or_float32_cannot_hold_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        A.attention(*draws(), "bf16", **changes)


def test_numbers_of_numpy_are_numbers() -> None:
    plain = A.attention(*draws(), "bf16", scale=0.125, probability_scale=256.0)
    numbers: Any = {"scale": np.float32(0.125), "probability_scale": np.float32(256)}
    assert A.attention(*draws(), "bf16", **numbers) == plain
    few: Any = {"scale": np.int64(2), "sink": np.float32(6)}
    assert A.attention_underflow(**few).rows == A.attention_underflow(scale=2, sink=6.0).rows


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e300])
def test_errors_of_tiny_and_huge_values_are_relative_to_them(size: float) -> None:
    q, k, v = draws()
    report = A.attention(q, k, size * v, "bf16")
    if size < 1:
        assert report.relative_error == report.input_error == 1 == report.bias * -1
        assert (report.row_errors == 1).all()
    caches = [A.KVCache("bf16", "none"), A.KVCache("e4m3", "none")]
    for row in A.kv_caches(q, k * (size if size < 1 else 1e-160), size * v, caches).rows:
        assert (row.key_error, row.value_error, row.score_error, row.output_error) == pytest.approx((1, 1, 1, 1))


@pytest.mark.filterwarnings("error")
def test_a_head_without_known_errors_has_none() -> None:
    q, k, v = draws()
    assert A.attention(q, k, 0 * v, "bf16").to_frame("head")["mean_row_error"].isna().all()


def test_values_with_other_channels_than_keys_have_their_own_share_of_scales() -> None:
    q, k, v = draws()
    report = A.kv_caches(q, k, v[..., :8], A.KVCache("int4", "token"))
    (row,) = report.rows
    assert (report.keys, report.channels) == (16, 8)
    assert row.bits_per_value == 4 + 16 * (16 + 16) / (16 * 32 + 16 * 8)  # a scale of 16 bits a token, for k and for v


def test_the_best_of_several_caches_is_one_with_an_error() -> None:
    row = A.kv_caches(*draws(), A.KVCache("int8")).rows[0]
    broken = row.__class__(**row.__dict__ | {"cache": "broken", "output_error": math.nan})
    report = A.CacheReport((broken, row), 2, 16, 16, 32)
    assert "INT8, token has the smallest output error" in str(report)


def test_underflow_is_measured_in_float64_and_for_scores_far_apart() -> None:
    assert A.attention_underflow("fp64", spreads=(1,)).rows[0].law == 0
    assert A.attention_underflow("e4m3", spreads=(1e200,), normalised=True).rows[0].law == 1


def test_sentences_on_one_head_and_on_caches_without_errors() -> None:
    q, k, v = (x[:1] for x in draws())
    assert str(A.attention(q, k, v, "bf16")).startswith("1 head of 16 queries and 16 keys: ")
    assert str(A.kv_caches(q, k, 0 * v, A.KVCache("int8"))).startswith("of 1 cache, none has a defined error")
    with pytest.raises(ValueError, match="tokens must be an integer >= 1; got 0"):
        A.KVCache("int8").bits(0, 8)


def test_a_file_that_lacks_metrics_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.npz"
    save(path, {"output": np.zeros(1, np.float32)}, {"kind": "a report on attention", "recipe": {}})
    with pytest.raises(ValueError, match=r"report.npz: wanted a report on attention as save\(\) wrote it"):
        A.AttentionReport.load(path)


def test_masks_may_be_tensors_of_small_floats() -> None:
    torch = pytest.importorskip("torch")
    mask = np.where(np.tri(16, dtype=bool), 0.0, -np.inf)
    tensor = torch.tensor(mask, dtype=torch.bfloat16)
    assert A.attention(*draws(), mask=tensor) == A.attention(*draws(), mask=mask)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_masks_of_nan_and_inf_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="mask must hold numbers to add, or -Inf for masked keys"):
        A.attention(*draws(), mask=np.full((16, 16), value))


def test_what_is_no_cache_is_refused() -> None:
    caches: Any = "int8"
    with pytest.raises(TypeError, match=r"caches must be an fp\.analysis\.KVCache or several; got 'int8'"):
        A.kv_caches(*draws(), caches)
    with pytest.raises(ValueError, match="fmt must be a float format or a signed integer format; got UINT8"):
        A.KVCache("uint8")


def test_small_divergences_of_caches_are_positive() -> None:
    q, k, v = (x / 100 for x in draws())
    report = A.kv_caches(q, k, v, [A.KVCache("fp32", "none")])
    assert 0 < report.rows[0].kl < 1e-20
