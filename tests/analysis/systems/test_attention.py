"""Attention in chosen formats against plain loops, and against published figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp

A = fp.analysis
Array = Any
WRONG: Any = 4


def draws(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    """Return standard normal arrays."""
    source = np.random.default_rng(seed)
    return [source.standard_normal(shape) for shape in shapes]


def to(x: Any, fmt: str) -> float:
    """Return a number rounded to a format."""
    return float(fp.quantize(np.array([x], np.float64), fmt)[0])


def chain(a: Array, b: Array, fmt: str = "fp32") -> float:
    """Return the sum of products in ascending order, every fused multiply-add rounded."""
    codes = [fp.encode(np.array(x, np.float64), fmt) for x in (a, b)]
    total = fp.encode(np.zeros(1), fmt)
    for x, y in zip(*codes, strict=True):
        total = fp.fma(np.array([x]), np.array([y]), total, fmt=fmt)
    return float(fp.decode(total, fmt, np.float64)[0])


def looped(q: Array, k: Array, v: Array, recipe: Any, scale: float) -> Array:
    """Return the attention of one head, one query, one key and one channel at a time."""
    n = recipe
    scales = [1.0, 1.0, 1.0]
    if n.scaled_inputs:
        scales = [float(np.float32(np.abs(x).max().astype(np.float32) / np.float32(n.inputs.max))) for x in (q, k, v)]
    q, k, v = (
        np.vectorize(lambda x, s=s: to(np.float32(x) / s, n.inputs))(x) for x, s in zip((q, k, v), scales, strict=True)
    )
    scale = float(np.float32(scale) * np.float32(scales[0]) * np.float32(scales[1]))
    block = n.block or len(k)
    result = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        scores = [to(to(chain(q[i], key), n.scores) * scale, n.scores) for key in k]
        top, total, mixed = -math.inf, 0.0, np.zeros(v.shape[1])
        if n.block is None:
            top = max(scores)
            exps = [to(math.exp(to(s - top, n.softmax)), n.softmax) for s in scores]
            for e in exps:
                total = to(total + e, n.softmax)
            weights = [to(to(e / total, n.softmax) * n.probability_scale, n.probabilities) for e in exps]
            for c in range(v.shape[1]):
                mixed[c] = to(chain(weights, v[:, c]), n.unnormalised)
                result[i, c] = to(to(mixed[c] / n.probability_scale * scales[2], "fp32"), n.output)
            continue
        for start in range(0, len(k), block):
            part = scores[start : start + block]
            higher = max(top, *part)
            decay = to(math.exp(to(top - higher, n.softmax)), n.softmax) if start else 0.0
            exps = [to(math.exp(to(s - higher, n.softmax)), n.softmax) for s in part]
            of_block = 0.0
            for e in exps:
                of_block = to(of_block + e, n.softmax)
            total = to(to(total * decay, n.softmax) + of_block, n.softmax)
            weights = [to(e * n.probability_scale, n.probabilities) for e in exps]
            for c in range(v.shape[1]):
                product = to(chain(weights, v[start : start + block, c]), n.unnormalised)
                mixed[c] = product if not start else to(to(mixed[c] * decay, n.unnormalised) + product, n.unnormalised)
            top = higher
        for c in range(v.shape[1]):
            quotient = to(mixed[c] / total, n.softmax) / n.probability_scale
            result[i, c] = to(to(quotient * scales[2], "fp32"), n.output)
    return result


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fp32", {}),
        ("bf16", {}),
        ("fp16", {}),
        ("bf16", {"softmax": "bf16"}),
        ("bf16_flash", {"block": 5}),
        ("bf16_flash", {"block": 4, "unnormalised": "bf16", "softmax": "fp16", "scores": "bf16"}),
        ("fp8_flash", {"block": 3, "probability_scale": 256.0}),
        ("fp8_flash", {"block": None, "probabilities": "e5m2"}),
    ],
)
def test_outputs_are_those_of_plain_loops(name: str, changes: dict[str, Any]) -> None:
    q, k, v = draws((3, 8), (11, 8), (11, 4))
    recipe = A.AttentionRecipe(**{**vars_of(name), **changes})
    got = A.attention(q, k, v, name, **changes)
    want = looped(q, k, v, recipe, float(np.float32(1 / math.sqrt(8))))
    fp.testing.assert_bits_equal(got.output, want.astype(np.float32))


def test_scaled_inputs_hold_values_of_any_size() -> None:
    q, k, v = draws((2, 16, 32), (2, 24, 32), (2, 24, 8))
    plain = A.attention(q, k, v, "fp8_flash")
    large = A.attention(2.0**12 * q, k, 2.0**14 * v, "fp8_flash", scale=2.0**-12 / math.sqrt(32))
    fp.testing.assert_bits_equal(large.output, 2.0**14 * plain.output)
    raw = A.attention(2.0**12 * q, k, 2.0**14 * v, "fp8_flash", scaled_inputs=False)
    assert np.isnan(raw.output).any()
    fp.testing.assert_bits_equal(
        A.attention(q, k, v, "fp32", scaled_inputs=True).output, A.attention(q, k, v, "fp32").output
    )


def vars_of(name: str) -> dict[str, Any]:
    """Return the fields of a recipe."""
    from fpsim.analysis.systems.attention.recipe import RECIPES

    return dict(vars(RECIPES[name]))


def test_a_matrix_unit_sums_both_products() -> None:
    q, k, v = draws((2, 64), (32, 64), (32, 16))
    got = A.attention(q, k, v, "bf16_flash", accumulate="hopper_bf16_f32", block=32)
    cast = [fp.cast(x, "bf16") for x in (q, k, v)]
    scores = fp.matmul(cast[0], np.ascontiguousarray(cast[1].T), accumulate="hopper_bf16_f32") * np.float32(1 / 8)
    exps = np.exp((scores - scores.max(axis=1, keepdims=True)).astype(np.float64)).astype(np.float32)
    product = fp.matmul(fp.cast(exps, "bf16"), cast[2], accumulate="hopper_bf16_f32")
    sums = fp.sum(exps, accumulate=fp.Sequential("fp32"), axis=1)
    fp.testing.assert_bits_equal(got.output, fp.quantize(product / sums[:, None], "bf16"))


def test_heads_masks_and_caches_are_read_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = draws((2, 4, 6, 16), (2, 2, 9, 16), (2, 2, 9, 8))
    got = A.attention(q, k, v, "fp32", causal=True)
    assert got.output.shape == (2, 4, 6, 8)
    assert (got.heads, got.queries, got.keys, got.channels) == (8, 6, 9, 8)
    mask = np.tri(6, 9, 3, dtype=bool)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x) for x in (q, k, v)), attn_mask=torch.from_numpy(mask), enable_gqa=True
    )
    assert np.abs(got.output - want.numpy()).max() < 1e-6
    for form in (mask, np.where(mask, 0.0, -np.inf)):
        assert A.attention(q, k, v, "fp32", mask=form) == got
    one = A.attention(q[1, 3], k[1, 1], v[1, 1], "fp32", causal=True)
    fp.testing.assert_bits_equal(one.output, got.output[1, 3])
    stored = A.attention(q, k, v, "fp32", cache=A.KVCache("int8", "token"))
    by_hand = [
        fp.quantize_scaled(x.astype(np.float32), "int8", fp.Scaling(block=(1, -1), scale_format=fp.FP16))
        for x in (k, v)
    ]
    fp.testing.assert_bits_equal(stored.output, A.attention(q, by_hand[0], by_hand[1], "fp32").output)


def test_scores_overflow_fp16_from_a_spread_of_about_34() -> None:
    # 128 channels: only from sigma ~ 34 on; resolution fails before: BF16's ulp at 64 is 0.5, FP16's at 1024 is 1
    q, k, v = draws((512, 128), (512, 128), (512, 16))
    assert A.attention(30 * q, 30 * k, v, "fp16").score_overflow == 0
    assert A.attention(40 * q, 40 * k, v, "fp16").score_overflow > 0
    for fmt, ulp, size in (("bf16", 0.5, 100.0), ("fp16", 1.0, 1500.0)):
        k = np.eye(4)
        report = A.attention(np.full((2, 4), size), k, k, fmt, scale=1.0)
        assert report.score_resolution == ulp
        assert report.repeated_rows == 1


def test_odds_are_wrong_by_half_the_spacing_of_the_largest_score() -> None:
    # marin 8217: bf16 logits with peaks of 5 .. 640: probability error 1.2 .. 86 %, which is 1 - exp(-2) at 640
    for peak, ulp, error in ((5.0, 1 / 32, 1 - math.exp(-1 / 64)), (640.0, 4.0, 0.8647)):
        k = np.diag([peak + ulp / 2, peak])  # a tie, which goes to the peak
        report = A.attention(np.ones((1, 2)), k, np.eye(2), "fp32", scale=1.0, scores="bf16")
        assert report.score_resolution == ulp
        assert report.output.tolist() == [[0.5, 0.5]]
        exact = math.exp(ulp / 2)  # the odds of the first key
        assert 1 - 1 / exact == pytest.approx(error, abs=1e-4)
        assert report.total_variation == pytest.approx(exact / (1 + exact) - 0.5, rel=1e-6)


def test_rounding_is_biased_where_maxima_repeat_and_the_product_is_kept_in_bf16() -> None:
    # arXiv 2510.04212: several weights of 1, values of one sign, and small weights that break every tie one way
    source = np.random.default_rng(0)
    v = fp.quantize(-(1 + source.random((64, 64))), "bf16")
    bias = {}
    for repeats in (1, 2, 3):
        mask = np.full((512, 64), -np.inf)
        for row in mask:
            places = source.permutation(64)
            row[places[:repeats]] = 0
            row[places[repeats : repeats + 3]] = -source.uniform(7, 11, 3)
        for fmt in ("bf16", "fp32"):
            report = A.attention(np.zeros((512, 4)), np.zeros((64, 4)), v, "bf16_flash", mask=mask, unnormalised=fmt,
                                 output="fp32")  # fmt: skip
            assert report.repeated_rows == (repeats > 1)
            bias[repeats, fmt] = report.bias
    assert bias[2, "bf16"] > 8e-4  # outputs come out too large, all of them
    assert bias[3, "bf16"] > 5e-4
    assert bias[1, "bf16"] < -4e-4  # and too small where the small weights vanish beside one maximum
    assert all(abs(bias[repeats, "fp32"]) < 1e-6 for repeats in (1, 2, 3))


def test_flash_order_deviates_more_where_its_running_output_is_rounded() -> None:
    # arXiv 2405.02803: flash against plain attention in BF16, both against float64; the shape, not the factor of 10
    q, k, v = (fp.quantize(x, "bf16") for x in draws((2, 512, 64), (2, 512, 64), (2, 512, 64)))
    plain = A.attention(q, k, v, "bf16")
    flash = [A.attention(q, k, v, "bf16", block=block) for block in (256, 64, 16)]
    assert plain.relative_error < flash[0].relative_error < flash[1].relative_error < flash[2].relative_error
    assert A.attention(q, k, v, "bf16_flash").relative_error < plain.relative_error / 1.5


def test_a_sum_of_exponentials_in_bf16_stagnates() -> None:
    q, k, v = draws((64, 32), (2048, 32), (2048, 16))
    assert A.attention(q, k, v, "bf16", softmax="bf16").weight_sum > 0.5
    assert abs(A.attention(q, k, v, "bf16").weight_sum) < 1e-3


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "fp16"])
def test_the_law_of_underflow_says_which_weights_vanish(fmt: str) -> None:
    report = A.attention_underflow(fmt, spreads=(1, 2, 4, 6), keys=1024)
    for row in report.rows:
        assert row.below == pytest.approx(row.law, abs=0.025)
        assert row.lost == pytest.approx(row.below, abs=1e-4)  # a tie goes to 0
    assert report.threshold == fp.format(fmt).smallest_subnormal / 2
    if fmt == "e4m3":
        assert report.threshold == 2.0**-10
        assert -math.log(report.threshold) == pytest.approx(6.93, abs=0.005)
        scaled = A.attention_underflow(fmt, spreads=(2,), scale=256.0).rows[0]
        assert scaled.below < 0.01 < report.rows[1].below
    probabilities = A.attention_underflow(fmt, spreads=(0.5, 1), keys=4096, normalised=True)
    for row in probabilities.rows:
        assert row.below == pytest.approx(row.law, abs=0.02)


@pytest.mark.parametrize(("sink", "scale"), [(6.0, 1.0), (8.0, 1.0), (14.0, 1024.0), (16.0, 4096.0)])
def test_a_sink_makes_weights_vanish_by_the_published_law(sink: float, scale: float) -> None:
    # arXiv 2606.06521: E4M3, sinks, a factor S: share of underflow Phi(D - 6.93 - ln S)
    law = 0.5 * (1 + math.erf((sink - 10 * math.log(2) - math.log(scale)) / math.sqrt(2)))
    row = A.attention_underflow("e4m3", spreads=(1,), sink=sink, scale=scale).rows[0]
    assert row.law == pytest.approx(law, rel=1e-12)
    assert row.below == pytest.approx(law, abs=0.003)
    shares = A.attention_underflow("e4m3", spreads=(1,), sink=sink, scale=scale, normalised=True).rows[0]
    assert shares.below == pytest.approx(shares.law, abs=0.01)


def test_weights_of_a_flash_attention_vanish_as_the_law_says() -> None:
    q, k, v = draws((4, 128, 64), (4, 1024, 64), (4, 1024, 16))
    report = A.attention(2 * q, k, v, "fp8_flash", inputs="fp32", block=1024)
    law = A.attention_underflow("e4m3", spreads=(2,), keys=1024).rows[0]
    assert report.lost_weights == pytest.approx(law.below, abs=0.06)  # rows of q have spreads of their own
    assert report.lost_mass == pytest.approx(law.lost_mass, abs=0.01)


def test_caches_lose_what_is_published_for_blocks_of_32() -> None:
    # Camelid 709, head_dim 128, 34 bytes per 32: Q8_0, E4M3, E5M2: .54 2.40 4.75 %; an outlier of 30 x in each block
    # 1.25 .48 .95 %, of 100 x 1.27 .15 .29 %
    published = {1: (0.54, 2.40, 4.75), 30: (1.25, 0.48, 0.95), 100: (1.27, 0.15, 0.29)}
    caches = [A.KVCache(fmt, "block") for fmt in ("int8", "e4m3", "e5m2")]
    for outlier, figures in published.items():
        q, k = draws((2, 256, 128), (2, 512, 128))
        k[..., ::32] = np.where(outlier > 1, outlier * np.sign(k[..., ::32]), k[..., ::32])
        rows = A.kv_caches(q, k, k, caches).rows
        assert [100 * row.score_error for row in rows] == pytest.approx(figures, rel=0.12)
        assert [row.bits_per_value for row in rows] == [8.5, 8.5, 8.5]


def test_scales_of_caches_are_shared_as_named() -> None:
    q, k, v = draws((2, 32, 64), (2, 48, 64), (2, 48, 64))
    k[..., 5] *= 40
    by = {
        (row.cache): row
        for row in A.kv_caches(q, k, v, [A.KVCache("int4", s) for s in ("token", "head", "channel", "block")]).rows
    }
    blocks = {"token": (1, -1), "head": (-1, -1), "channel": (-1, 1), "block": (1, 32)}
    for name, block in blocks.items():
        scaling = fp.Scaling(block=block, scale_format=fp.FP16)
        stored = np.stack([fp.quantize_scaled(head.astype(np.float32), "int4", scaling) for head in k])
        error = np.linalg.norm(stored - k) / np.linalg.norm(k)
        assert by[f"INT4, {name}" + (" 1x32" if name == "block" else "")].key_error == pytest.approx(error, rel=1e-6)
    assert by["INT4, channel"].key_error < by["INT4, token"].key_error / 1.2
    assert by["INT4, token"].bits_per_value == 4 + 16 / 64
    assert by["INT4, head"].bits_per_value == 4 + 16 / (48 * 64)
    both = A.kv_caches(q, k, v, A.KVCache("int4", "token", keys="channel")).rows[0]
    assert both.key_error == by["INT4, channel"].key_error
    assert both.value_error == by["INT4, token"].value_error
    assert len(A.kv_caches(q, k, v).rows) == 14


def test_rows_without_keys_and_infinite_scores_do_no_harm() -> None:
    q, k, v = draws((3, 8), (5, 8), (5, 4))
    mask = np.ones((3, 5), bool)
    mask[1] = False
    for recipe in ("fp32", "bf16", "bf16_flash", "fp8_flash"):
        report = A.attention(q, k, v, recipe, mask=mask)
        assert np.isfinite(report.output[[0, 2]]).all()
        assert report.relative_error < 0.2
    causal = A.kv_caches(np.concatenate([q, q]), k, v, A.KVCache("int8"), causal=True).rows[
        0
    ]  # the first query has no key
    assert 0 < causal.output_error < 0.1
    some, every = (A.attention(q[rows], k, v, "bf16", mask=mask[rows]) for rows in (mask[:, 0], slice(None)))
    assert every.kl == some.kl > 0
    loud = A.attention(1e3 * q, 1e3 * k, v, "fp16", scale=1.0)
    assert loud.score_overflow > 0.9
    assert np.isnan(loud.output).any()


def test_reports_are_saved_drawn_and_tabulated(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    q, k, v = draws((2, 8, 16), (2, 8, 16), (2, 8, 16))
    report = A.attention(q, k, v, "bf16")
    report.save(tmp_path / "a.npz")
    again = A.AttentionReport.load(tmp_path / "a.npz")
    assert again == report
    fp.testing.assert_bits_equal(again.row_errors, report.row_errors)
    assert report != A.attention(q, k, v, "fp16")
    assert len(report.to_frame()) == 1
    assert len(report.to_frame(by="head")) == 2
    law = A.attention_underflow(spreads=(1, 2), trials=4)
    law.save(tmp_path / "u.json")
    assert A.WeightUnderflow.load(tmp_path / "u.json") == law
    caches = A.kv_caches(q, k, v, A.KVCache("int8"))
    caches.save(tmp_path / "c.json")
    assert A.CacheReport.load(tmp_path / "c.json") == caches
    older = (tmp_path / "c.json").read_text().replace('"bits_per_value"', '"bits"')
    (tmp_path / "older.json").write_text(older)
    assert A.CacheReport.load(tmp_path / "older.json") == caches
    with pytest.warns(DeprecationWarning, match="bits_per_value"):
        assert caches.rows[0].bits == caches.rows[0].bits_per_value
    for each in (report, law, caches):
        each.plot()
        each.to_frame()
        assert "<table>" in each._repr_html_()
        assert str(each).endswith(".")
    fp.encode_scaled(np.ones((2, 2), np.float32), "e4m3", fp.scalings.TENSOR).save(tmp_path / "s.npz")
    with pytest.raises(ValueError, match="wanted a report on attention"):
        A.AttentionReport.load(tmp_path / "s.npz")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: A.attention(q, q[:, :3], q), "the same channels"),
        (lambda q: A.attention(q, q, q[:3]), "the same heads and tokens"),
        (lambda q: A.attention(q[None], q, q), "a multiple of their heads"),
        (lambda q: A.attention(np.stack([q] * 3), np.stack([q] * 2), np.stack([q] * 2)), "a multiple of their heads"),
        (lambda q: A.attention(q[0], q, q), "q must be of shape"),
        (lambda q: A.attention(q, q, q, "bf61"), "Did you mean 'bf16'"),
        (lambda q: A.attention(q, q, q, probabilites="e4m3"), "Did you mean 'probabilities'"),
        (lambda q: A.attention(q, q, q, scale=-1.0), "scale must be a positive number"),
        (lambda q: A.attention(q, q, q, mask=np.ones((3, 7))), "mask must broadcast"),
        (lambda q: A.attention(q, q, q, probability_scale=3.0), "a power of two"),
        (lambda q: A.attention(q, q, q, probabilities="e8m0"), "signed format of up to 32 bits"),
        (lambda q: A.attention(q, q, q, block=0), "block must be an integer >= 1"),
        (lambda q: A.kv_caches(q, q, q, []), "one or more"),
        (lambda q: A.KVCache("int4", "none"), "INT4 needs scales"),
        (lambda q: A.KVCache("int4", "tokens"), "scales must be one of token"),
        (lambda q: A.attention_underflow(spreads=()), "spreads must be positive"),
        (lambda q: A.KVCache("int4", "block", block=WRONG), r"\(tokens, channels\) of a tile"),
        (lambda q: A.attention_underflow("e8m0"), "a format with a zero"),
        (lambda q: A.attention_underflow(sink=math.nan), "sink must be a number of nats"),
        (lambda q: A.attention_underflow(keys=0), "keys must be an integer >= 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(np.ones((4, 8)))


def test_other_kinds_are_refused() -> None:
    q = np.ones((4, 8))
    with pytest.raises(TypeError, match=r"cache must be an fp\.analysis\.KVCache"):
        A.attention(q, q, q, cache="int8")
    with pytest.raises(TypeError, match=r"a cache must be an fp\.analysis\.KVCache"):
        A.kv_caches(q, q, q, ["int8"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="mask must be an array of bools"):
        A.attention(q, q, q, mask="causal")
    with pytest.raises(TypeError, match="causal must be True or False; got an array"):
        A.attention(q, q, q, causal=np.ones((4, 4)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="accumulate must be a unit"):
        A.attention(q, q, q, accumulate=3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e30, np.nan, np.inf])
def test_numbers_that_overflow_are_reported_without_warnings(size: float) -> None:
    q = np.random.default_rng(0).standard_normal((1, 4, 8))
    report = A.attention(size * q, size * q, q, "fp16")
    assert report.score_overflow == (1.0 if size == 1e30 else 0.0)  # of scores that are finite in float64
    assert math.isnan(A.kv_caches(size * q, size * q, q, [A.KVCache("int8")]).rows[0].score_error) == (size != 1e30)


def test_a_cache_without_scales_rounds_float64_keys_once() -> None:
    k = np.full((1, 2, 4), 1 + 2.0**-8 + 2.0**-40)  # in float32 halfway between two BF16 numbers, in float64 above
    report = fp.analysis.kv_caches(np.ones((1, 2, 4)), k, k, fp.analysis.KVCache("bf16", "none"))
    assert report.rows[0].key_error == pytest.approx((1 + 2.0**-7) / k[0, 0, 0] - 1, rel=1e-9)
