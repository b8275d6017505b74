"""Batch invariance and decoding: bits of rows in batches, and how logits part."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp

A = fp.analysis
Array = Any
RAGGED: Any = [[1], [2, 3]]
WRONG: Any = 3


def draws(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    """Return standard normal arrays."""
    source = np.random.default_rng(seed)
    return [source.standard_normal(shape) for shape in shapes]


def split_below(limit: int, parts: int = 4) -> Any:
    """Return a rule that splits K for batches of up to `limit` rows."""
    return lambda m, n, k: fp.schedules.cublas(split_k=parts) if m <= limit else None


# ---- products


def test_a_scheduled_product_has_the_bits_of_its_schedule() -> None:
    x, w = draws((8, 1024), (1024, 16))
    layer = A.ScheduledProduct(w, "hopper_bf16_f32", split_below(4), out_fmt="bf16")
    codes = fp.cast(x, "bf16"), fp.cast(w, "bf16")
    schedule = fp.schedules.cublas(split_k=4)
    few = fp.matmul(codes[0][:4], codes[1], accumulate="hopper_bf16_f32", schedule=schedule, out_fmt="bf16")
    many = fp.matmul(*codes, accumulate="hopper_bf16_f32", out_fmt="bf16")
    fp.testing.assert_bits_equal(layer(x[:4]), few)
    fp.testing.assert_bits_equal(layer(x), many)
    fp.testing.assert_bits_equal(A.ScheduledProduct(None, "hopper_bf16_f32", out_fmt="bf16")(x, w), many)
    pair = A.ScheduledProduct(w, choose=lambda m, n, k: ("ampere_bf16_f32", None))
    fp.testing.assert_bits_equal(pair(x), fp.matmul(*codes, accumulate="ampere_bf16_f32"))


@pytest.mark.parametrize(
    "unit", ["volta_f16_f32", "ampere_bf16_f32", "ada_e4m3_f32", "hopper_bf16_f32", "hopper_e4m3_f32"]
)
def test_one_chain_of_any_unit_does_not_depend_on_the_batch(unit: str) -> None:
    x, w = draws((40, 256), (256, 24))
    report = A.batch_invariance(A.ScheduledProduct(w, unit), x, batches=(1, 3, 32, 33, 64))
    assert report.invariant
    assert report.thresholds == ()
    assert {row.group for row in report.rows} == {0}
    assert "No bit of 48 elements" in str(report)


@pytest.mark.parametrize("limit", [1, 7, 31, 32])
def test_the_threshold_of_split_k_is_found(limit: int) -> None:
    x, w = draws((64, 1024), (1024, 32))
    layer = A.ScheduledProduct(w, "hopper_bf16_f32", split_below(limit))
    report = A.batch_invariance(layer, x, batches=(1, 2, 31, 32, 64))
    assert report.causes == ("size",)
    assert report.thresholds == (limit + 1,)
    for row in report.rows:
        split = row.batch <= limit
        assert ("split_k=4" in row.description) == split
        assert (row.differing > 0) != split
    assert f"From {limit + 1} rows on" in str(report)
    # the sizes, from a rule with two limits
    two = A.ScheduledProduct(
        w, choose=lambda m, n, k: fp.schedules.cublas(split_k=8 if m < 32 else 2 if m < 1025 else 1)
    )
    report = A.batch_invariance(two, x, batches=(1, 31, 32, 1024, 1025), rows=1)
    assert report.thresholds == (32, 1025)
    assert [row.group for row in report.rows] == [0, 0, 1, 1, 2]


def test_another_unit_for_small_batches_changes_bits() -> None:
    x, w = draws((64, 1024), (1024, 32))
    rule = lambda m, n, k: ("hopper_bf16_f32" if m > 8 else "ampere_bf16_f32", None)  # noqa: E731
    report = A.batch_invariance(A.ScheduledProduct(w, choose=rule), x, batches=(1, 8, 16))
    assert report.thresholds == (9,)


def test_differences_are_bounded_by_the_sums_rounding() -> None:
    # facts: expect inequality, bounded by gamma_K
    x, w = draws((64, 4096), (4096, 64))
    report = A.batch_invariance(A.ScheduledProduct(w, choose=split_below(4)), x, batches=(1, 64))
    k, u = 4096, 2.0**-24
    assert 0 < report.rows[-1].relative < k * u / (1 - k * u) * 10


def test_scales_of_the_whole_batch_make_rows_depend_on_neighbours() -> None:
    x, w = draws((32, 64), (64, 8))
    x *= np.exp(draws((32, 1), seed=1)[0])

    def by(scaling: fp.Scaling) -> Any:
        return lambda rows: fp.quantize_scaled(rows.astype(np.float32), "int8", scaling) @ w.astype(np.float32)

    report = A.batch_invariance(by(fp.scalings.TENSOR), x, batches=(4, 8))
    assert "neighbours" in report.causes
    assert report.rows[0].by_neighbours > 0
    # einsum adds each row alone
    alone = lambda rows: np.einsum("mk,kn->mn", fp.quantize_scaled(rows.astype(np.float32), "int8", fp.scalings.ROW), w)  # noqa: E731
    assert A.batch_invariance(alone, x, batches=(1, 4, 8)).invariant


def test_neighbours_are_replaced_even_if_one_row_fills_all_batches() -> None:
    x = draws((3, 50), seed=1)[0].astype(np.float32)
    report = A.batch_invariance(lambda rows: rows / np.abs(rows).max(), x, batches=[2, 4])
    assert report.causes == ("neighbours",)


def test_one_size_of_batches_is_not_called_invariant_without_a_word() -> None:
    text = str(A.batch_invariance(lambda rows: rows, draws((4, 5))[0], batches=8))  # type: ignore[arg-type]
    assert text == (
        "No bit of 10 elements depends on the batch (only batches of 8 rows, so that other sizes may change bits)."
    )


def test_results_in_formats_without_a_dtype_are_values() -> None:
    product = A.ScheduledProduct(np.full((4, 1), 0.1), out_fmt="tf32")
    assert product(np.ones((1, 4))).tolist() == [[0.400390625]]


def test_three_causes_are_listed() -> None:
    sums = A.batch_invariance(lambda rows: np.cumsum(rows, axis=0)[::-1], draws((8, 2))[0], batches=[2, 4])
    assert str(sums).startswith("Bits depend on size, position and neighbours (batches of 2 to 4).")


def test_positions_and_repetition_are_told_apart() -> None:
    x = draws((16, 4))[0].astype(np.float32)
    by_place = A.batch_invariance(
        lambda rows: rows * np.arange(1, len(rows) + 1, dtype=np.float32)[:, None], x, batches=(1, 4)
    )
    assert by_place.causes == ("position",)
    assert by_place.rows[1].by_position == 1
    # a sum over the batch in any order of rows: the neighbours count, their places do not
    total = lambda rows: rows * 0 + np.sort(rows, axis=0).sum(axis=0)  # noqa: E731
    assert A.batch_invariance(total, x, batches=(4,)).causes == ("neighbours",)
    calls = []

    def noisy(rows: Array) -> Array:
        calls.append(1)
        return rows + np.float32(len(calls))

    report = A.batch_invariance(noisy, x, batches=(1, 4))
    assert "repetition" in report.causes
    assert report.thresholds[0] > 1
    assert "repeating a call changes bits" in str(report)


def test_models_of_torch_are_given_tensors() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.ReLU()
    x = torch.randn(8, 5)
    report = A.batch_invariance(model, x, batches=(1, 4))
    assert report.invariant
    assert report.elements == 10


# ---- decoding


def decoders(fmt: str, **sizes: int) -> tuple[Any, Any]:
    """Return two decoders with the same weights, whose products add K in one chain and in four slices."""
    unit = {"bf16": "hopper_bf16_f32", "fp16": "hopper_f16_f32"}[fmt]
    products = A.ScheduledProduct(None, unit), A.ScheduledProduct(None, unit, fp.schedules.cublas(split_k=4))
    first, second = (A.RandomDecoder(product, fmt=fmt, **sizes) for product in products)
    return first, second


def test_a_cache_gives_the_logits_of_reading_all_tokens_again() -> None:
    cached, fresh = (A.RandomDecoder(np.matmul, width=32, layers=2) for _ in range(2))
    tokens = np.array([5, 1, 200, 7])
    for length in range(1, 5):
        step = cached(tokens[:length])
    fp.testing.assert_bits_equal(step, fresh(tokens))
    fp.testing.assert_bits_equal(cached(tokens[:2]), A.RandomDecoder(np.matmul, width=32, layers=2)(tokens[:2]))


def test_the_same_decoder_twice_does_not_part() -> None:
    products = [A.ScheduledProduct(None, choose=split_below(4)) for _ in range(2)]
    first, second = (A.RandomDecoder(p, batch=4, layers=1) for p in products)
    report = A.decoding(first, second, [1, 2], steps=6)
    assert report.mean_kl == 0
    assert report.first_change is None
    assert report.changed_tokens == 0


def test_a_batch_beyond_the_threshold_parts_logits() -> None:
    alone, crowded = (A.RandomDecoder(A.ScheduledProduct(None, choose=split_below(4)), batch=n) for n in (1, 8))
    report = A.decoding(alone, crowded, [1, 2, 3], steps=24)
    assert report.rows[-1].kl > 0
    assert report.mean_logprob_difference > 1e-4
    first, last = (np.mean([row.kl for row in part]) for part in (report.rows[:6], report.rows[-6:]))
    assert last > first  # the cache keeps what differed


def test_bf16_parts_several_times_faster_than_fp16() -> None:
    # arXiv 2510.26788: up to 24 times the mismatch; the three bits alone predict 8
    apart = {
        fmt: A.decoding(*decoders(fmt), prompt=[1, 2, 3], steps=32).mean_logprob_difference for fmt in ("bf16", "fp16")
    }
    assert 3 < apart["bf16"] / apart["fp16"] < 24


def test_kl_and_log_probabilities_are_those_of_softmax() -> None:
    p, q = np.array([0.0, math.log(3.0), 0.0]), np.array([0.0, 0.0, math.log(2.0)])
    found = A.decoding(lambda t: p, lambda t: q, [0], steps=2, follow="own").rows[0]
    exact = [np.array([1, 3, 1]) / 5, np.array([1, 1, 2]) / 4]
    assert found.kl == pytest.approx(float((exact[0] * np.log(exact[0] / exact[1])).sum()))
    assert (found.token_first, found.token_second) == (1, 2)
    assert found.logprob_first == pytest.approx(math.log(3 / 5))
    assert found.logprob_second == pytest.approx(math.log(1 / 4))
    assert found.logit_difference == pytest.approx(math.log(5 / 2))


@pytest.mark.parametrize("size", [1e-2, 1e-6, 1e-10])
def test_small_divergences_are_positive_and_precise(size: float) -> None:
    x, noise = draws((50,), (50,))
    (row,) = A.decoding(lambda t: x, lambda t: x + size * noise, [1], steps=1).rows
    p = np.exp(x) / np.exp(x).sum()
    variance = p @ noise**2 - (p @ noise) ** 2  # the divergence of logits that are close is half of it
    assert row.kl == pytest.approx(size**2 * variance / 2, rel=5 * size + 1e-5)


def test_divergences_of_distant_distributions_are_finite() -> None:
    (row,) = A.decoding(lambda t: np.array([0.0, -1000.0]), lambda t: np.array([-1000.0, 0.0]), [1], steps=1).rows
    assert row.kl == 1000


def test_followers_read_the_tokens_that_they_are_told_to() -> None:
    read: dict[str, list[Any]] = {"first": [], "own": []}

    def always(token: int, log: list[Any]) -> Any:
        def step(tokens: Array) -> Array:
            log.append(tokens.tolist())
            return np.eye(4)[token]

        return step

    for follow, log in read.items():
        A.decoding(always(1, []), always(2, log), [0], steps=3, follow=follow)
    assert read == {"first": [[0], [0, 1], [0, 1, 1]], "own": [[0], [0, 2], [0, 2, 2]]}


@pytest.mark.filterwarnings("error")
def test_logits_of_nan_and_infinity_make_no_warning() -> None:
    def returning(logits: Any) -> Any:
        return lambda tokens: logits

    plain = np.array([2.0, 1.0, 0.0])
    for logits in ([math.nan] * 3, [math.nan, 0.0, 1.0], [math.inf, 0.0, 1.0], [-math.inf] * 3):
        odd = np.array(logits)
        row = A.decoding(returning(odd), returning(plain), [0], steps=1).rows[0]
        assert math.isnan(row.kl)
        assert math.isnan(row.logprob_first)


# ---- reports and bad input


def test_reports_come_back_from_files_and_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    x, w = draws((16, 1024), (1024, 8))
    batches = A.batch_invariance(A.ScheduledProduct(w, choose=split_below(4)), x, batches=(1, 8))
    batches.save(tmp_path / "b.json")
    assert A.BatchInvariance.load(tmp_path / "b.json") == batches
    steps = A.decoding(lambda t: np.eye(3)[0], lambda t: np.eye(3)[1] / 2, [0], steps=2)
    steps.save(tmp_path / "d.json")
    assert A.DecodingReport.load(tmp_path / "d.json") == steps
    for report in (batches, steps):
        report.plot()
        assert len(report.to_frame()) == 2
        assert "<table>" in report._repr_html_()
    assert "the first token changes at step 0" in str(steps)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: A.batch_invariance(WRONG, np.ones((4, 2))), TypeError, "fn must be a function"),
        (
            lambda: A.batch_invariance(np.sin, np.ones((4, 2)), batches=()),
            ValueError,
            r"batches must be integers in 1 \.\. 2\*\*31",
        ),
        (lambda: A.batch_invariance(np.sin, np.ones((4, 2)), batches=(0,)), ValueError, "batches must be integers"),
        (
            lambda: A.batch_invariance(np.sin, np.ones((4, 2)), batches=(10**30,)),
            ValueError,
            "batches must be integers",
        ),
        (lambda: A.batch_invariance(np.sin, np.ones((2, 2))), ValueError, "at least one other row"),
        (lambda: A.batch_invariance(lambda x: x[:1], np.ones((9, 2)), batches=(1, 2)), ValueError, "each of 2 rows"),
        (
            lambda: A.batch_invariance(lambda x: x.astype(int), np.ones((9, 2))),
            TypeError,
            "the result must be an array",
        ),
        (lambda: A.batch_invariance(lambda rows: rows * np.nan, np.ones((4, 2))), ValueError, "fn must return numbers"),
        (lambda: A.batch_invariance(lambda rows: rows[:, :0], np.ones((4, 2))), ValueError, "fn must return numbers"),
        (lambda: A.ScheduledProduct(np.ones(3)), ValueError, r"shape \(k, n\)"),
        (lambda: A.ScheduledProduct(None, "hopper_bf16"), ValueError, "unit"),
        (
            lambda: A.ScheduledProduct(None, "blackwell_mxfp8_e4m3_f32"),
            ValueError,
            "unit must be one without block scales",
        ),
        (lambda: A.ScheduledProduct(None, choose=WRONG), TypeError, "choose must be a schedule"),
        (
            lambda: A.ScheduledProduct(np.ones((2, 2)), choose=lambda m, n, k: 4)(np.ones((1, 2))),
            TypeError,
            "choose must",
        ),
        (lambda: A.ScheduledProduct()(np.ones((1, 2))), ValueError, "made without w"),
        (lambda: A.ScheduledProduct()(np.ones((1, 2)), np.ones(2)), ValueError, r"x \(m, k\) and w \(k, n\) must"),
        (lambda: A.ScheduledProduct(np.ones((1, 2)))(np.float32(1)), ValueError, r"got \(\) and \(1, 2\)"),
        (lambda: A.decoding(WRONG, np.sin, [1]), TypeError, "first must be a function"),
        (lambda: A.decoding(lambda t: np.ones(3), lambda t: np.ones(4), [1]), ValueError, "one shape"),
        (lambda: A.decoding(lambda t: np.ones((1, 3)), lambda t: np.ones(3), [1]), ValueError, r"\(vocabulary,\)"),
        (lambda: A.decoding(np.sin, np.sin, []), ValueError, "prompt must be"),
        (lambda: A.decoding(np.sin, np.sin, [1], follow="second"), ValueError, "follow must be one of"),
        (lambda: A.decoding(np.sin, np.sin, RAGGED), ValueError, "prompt must be one or more tokens"),
        (lambda: A.decoding(np.sin, np.sin, [2**63]), ValueError, "prompt must be one or more tokens"),
        (
            lambda: A.decoding(lambda t: np.ones(3), lambda t: np.ones(3), [1], steps=2**64),
            ValueError,
            "steps must be at",
        ),
        (lambda: A.RandomDecoder(np.matmul, vocabulary=2**64), ValueError, r"vocabulary must be at most 2\*\*20"),
        (lambda: A.RandomDecoder(np.matmul, batch=2**64), ValueError, r"batch must be at most 2\*\*20"),
        (lambda: A.RandomDecoder(np.matmul, width=2**16), ValueError, r"at most 2\*\*30 weights; got 206"),
        (lambda: A.RandomDecoder(np.matmul, seed=-1), ValueError, "seed must be"),
        (lambda: A.RandomDecoder(np.matmul, width=8, layers=1)([3, 256]), ValueError, r"tokens must be in 0 \.\. 255"),
        (lambda: A.RandomDecoder(np.matmul, width=8, layers=1)([-1]), ValueError, r"tokens must be in 0 \.\. 255"),
        (lambda: A.RandomDecoder(np.matmul, width=8, layers=1)([]), ValueError, "tokens must be one or more"),
        (lambda: A.RandomDecoder(np.matmul, width=8, layers=1)([1.5]), ValueError, "tokens must be one or more"),
        (lambda: A.RandomDecoder(np.matmul, heads=3, width=64), ValueError, "heads must divide width"),
        (lambda: A.RandomDecoder(WRONG), TypeError, "product must be a function"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_product_that_fails_leaves_no_keys_behind() -> None:
    calls = []

    def product(x: Any, w: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError("interrupted")
        return x @ w

    decoder = A.RandomDecoder(product, width=32, layers=2)
    with pytest.raises(RuntimeError, match="interrupted"):
        decoder([1, 2, 3])
    fp.testing.assert_bits_equal(decoder([1, 2, 3]), A.RandomDecoder(np.matmul, width=32, layers=2)([1, 2, 3]))


@pytest.mark.filterwarnings("error")
def test_a_decoder_keeps_its_logits_and_equal_ones_are_drawn() -> None:
    first, second = A.RandomDecoder(np.matmul, width=32, layers=1), A.RandomDecoder(np.matmul, width=32, layers=1)
    logits = first([1, 2])
    kept = logits.copy()
    logits[:] = 0
    assert np.array_equal(first([1, 2]), kept)
    pytest.importorskip("matplotlib")
    assert not A.decoding(first, second, [1, 2], steps=2).plot().get_lines()


def test_a_difference_from_zeros_is_infinite() -> None:
    report = A.batch_invariance(lambda x: np.full((len(x), 2), float(len(x) > 1)), np.ones((9, 3)), batches=(1, 2))
    assert [row.relative for row in report.rows] == [0.0, math.inf]
