"""Softmax, cross entropy, RMSNorm, SwiGLU and ReLU, forwards and backwards, against one rounding at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import training as oracle
from tests.oracles.training import Single, array_of, singles
from tests.train.operations.rows import ROWS, SIZES, Array, rows, usual

torch = pytest.importorskip("torch")
from fpsim.train.operations import operations  # noqa: E402
from fpsim.train.operations.operations import EPSILON  # noqa: E402

FACTOR = 1 / np.sqrt(32.0)  # that attention multiplies scores by


def outcome(function: Any, slopes: Array | None, *operands: Any) -> tuple[Array, list[Array]]:
    """Return the result of a torch function, and the gradients of its float operands."""
    tensors = [torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for x in operands]
    floats = [x.requires_grad_() for x in tensors if isinstance(x, torch.Tensor) and x.is_floating_point()]
    result = function.apply(*tensors)
    if slopes is not None:
        result.backward(torch.from_numpy(slopes.copy()))
    return result.detach().numpy(), [x.grad.numpy() for x in floats if x.grad is not None]


def test_causal_softmax_and_its_gradient_make_every_rounding_in_order() -> None:
    length = max(SIZES)
    scores = np.stack([rows(length, seed) for seed in range(length)], 1)  # (7, 65, 65), the row's kind by matrix
    slopes = np.stack([rows(length, seed + 100)[[0, 1, 2, 0, 0, 5, 0]] for seed in range(length)], 1)
    shares, (gradient,) = outcome(operations.CausalSoftmax, slopes, scores, FACTOR)
    factor = Single(FACTOR)
    for kind in range(ROWS):
        assert_bits_equal(np.triu(shares[kind], 1), np.zeros_like(shares[kind]))
        assert_bits_equal(np.triu(gradient[kind], 1), np.zeros_like(shares[kind]))
        for width in SIZES:
            place = kind, width - 1, slice(width)
            assert_bits_equal(shares[place], array_of(oracle.softmax(singles(scores[place]), factor)))
            want = oracle.softmax_slopes(singles(shares[place]), singles(slopes[place]), factor)
            assert_bits_equal(gradient[place], array_of(want))


def test_causal_softmax_is_fp_softmax_of_the_rows_begun() -> None:
    scores = usual((2, 3, 40, 40), 0) * np.float32(4)
    shares, _ = outcome(operations.CausalSoftmax, None, scores, 0.5)
    for i in range(40):
        want = fp.softmax(scores[:, :, i, : i + 1] * np.float32(0.5), axis=-1)
        assert_bits_equal(shares[:, :, i, : i + 1], want)


@in_turn("size", SIZES)
def test_cross_entropy_and_its_gradient_make_every_rounding_in_order(size: int) -> None:
    logits, targets = rows(size, size), np.random.default_rng(size).integers(0, size, ROWS)
    for kept in (slice(None), slice(3)):  # with special rows, the loss is NaN
        loss, (gradient,) = outcome(operations.CrossEntropy, np.array(0.75, np.float32), logits[kept], targets[kept])
        losses = []
        factor = Single(0.75) / Single(len(logits[kept]))
        for row, target, slope in zip(logits[kept], targets[kept].tolist(), gradient, strict=True):
            shares, of_row = oracle.cross_entropy(singles(row), target)
            losses.append(of_row)
            assert_bits_equal(slope, array_of(oracle.cross_entropy_slopes(shares, target, factor)))
        assert_bits_equal(loss.reshape(1), array_of([oracle.mean(losses)]))


@in_turn("count", SIZES)
def test_the_mean_of_losses_is_a_sum_by_lanes(count: int) -> None:
    logits, targets = usual((count, 5), count) * np.float32(3), np.arange(count) % 5
    loss, _ = outcome(operations.CrossEntropy, None, logits, targets)
    losses = [oracle.cross_entropy(singles(row), int(target))[1] for row, target in zip(logits, targets, strict=True)]
    assert_bits_equal(loss.reshape(1), array_of([oracle.mean(losses)]))


@in_turn("size", SIZES)
def test_rms_norm_and_its_gradient_make_every_rounding_in_order(size: int) -> None:
    x, weight = rows(size, size), usual((size,), 1) + np.float32(1)
    slopes = rows(size, size + 50)[[0, 1, 2, 0, 4, 5, 0]]
    result, (of_x, of_weight) = outcome(operations.RootMeanSquareNorm, slopes, x, weight)
    ratios = []
    for i in range(ROWS):
        inverse, want = oracle.rms_norm(singles(x[i]), singles(weight), Single(EPSILON))
        assert_bits_equal(result[i], array_of(want))
        ratio, want = oracle.rms_norm_slopes(singles(slopes[i]), singles(x[i]), singles(weight), inverse)
        assert_bits_equal(of_x[i], array_of(want))
        ratios.append(ratio)
    columns = [zip(singles(slopes[:, j]), [ratio[j] for ratio in ratios], strict=True) for j in range(size)]
    assert_bits_equal(of_weight, array_of([Single.of_sum(column) for column in columns]))


@in_turn("count", SIZES)
def test_the_gradient_of_a_norms_weight_is_a_sum_by_lanes_over_rows(count: int) -> None:
    x, weight, slopes = usual((count, 3), 2), usual((3,), 3), usual((count, 3), 4)
    _, (_, of_weight) = outcome(operations.RootMeanSquareNorm, slopes, x, weight)
    for j in range(3):
        ratios = [singles(row)[j] * oracle.rms_norm(singles(row), singles(weight), Single(EPSILON))[0] for row in x]
        want = Single.of_sum(zip(singles(slopes[:, j]), ratios, strict=True))
        assert_bits_equal(of_weight[j : j + 1], array_of([want]))


def test_rms_norm_is_fp_rms_norm() -> None:
    x, weight = usual((4, 5, 130), 5), usual((130,), 6)
    result, _ = outcome(operations.RootMeanSquareNorm, None, x, weight)
    assert_bits_equal(result, fp.rms_norm(x, weight, eps=EPSILON))


@in_turn("size", SIZES)
def test_swiglu_and_its_gradient_make_every_rounding_in_order(size: int) -> None:
    gates, ups, slopes = rows(size, 1), rows(size, 2), rows(size, 3)
    x = torch.from_numpy(np.concatenate([gates, ups], 1))
    result = operations.swiglu(x).numpy()
    gradient = operations.swiglu_slopes(torch.from_numpy(slopes), x).numpy()
    for i in range(ROWS):
        assert_bits_equal(result[i], array_of(oracle.swiglu(singles(gates[i]), singles(ups[i]))))
        of_gates, of_ups = oracle.swiglu_slopes(singles(slopes[i]), singles(gates[i]), singles(ups[i]))
        assert_bits_equal(gradient[i], array_of(of_gates + of_ups))


def test_relu_passes_numbers_above_0_and_nan() -> None:
    x, slopes = rows(65), rows(65, 1)
    result, (gradient,) = outcome(operations.ReLU, slopes, x)
    stops = x <= 0
    assert_bits_equal(result, np.where(stops, np.float32(0), x))
    assert_bits_equal(gradient, np.where(stops, np.float32(0), slopes))


@in_turn("batch", (1, 3, 33))
def test_embeddings_add_a_row_of_each_table_and_their_gradients_over_positions(batch: int) -> None:
    tokens, positions = rows(5, 1), usual((6, 5), 2)
    codes = np.random.default_rng(3).integers(0, ROWS - 1, (batch, 4))  # the last token never comes
    slopes = rows(5, 4)[codes]
    result, (of_tokens, of_positions) = outcome(operations.Embedding, slopes, codes, tokens, positions)
    assert_bits_equal(result, tokens[codes] + positions[:4])
    for j in range(5):
        totals = [Single(0.0)] * ROWS
        for code, slope in zip(codes.reshape(-1).tolist(), singles(slopes[..., j]), strict=True):
            totals[code] = totals[code] + slope
        assert_bits_equal(of_tokens[:, j], array_of(totals))
        sums = [oracle.lane_sum(singles(slopes[:, place, j]), Single(0.0)) for place in range(4)]
        assert_bits_equal(of_positions[:, j], array_of([*sums, Single(0.0), Single(0.0)]))


def test_other_dtypes_are_refused() -> None:
    x = torch.ones(2, 4, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"take float32 tensors; got torch\.float64\. Take arithmetic='torch'"):
        operations.swiglu(x)
