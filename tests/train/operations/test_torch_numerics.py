"""The rounded functions in torch: the values of the NumPy ones, and gradients of the usual formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from fpsim.train.operations import numerics

torch = pytest.importorskip("torch")

from fpsim.train.operations.torch_numerics import torch_cross_entropy, torch_rms_norm, torch_softmax  # noqa: E402

FP16_SUMS = fp.Sequential("fp16")
functional = torch.nn.functional


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def gradients(y: Any, upstream: Any, *leaves: Any) -> list[Any]:
    return list(torch.autograd.grad(y, leaves, upstream))


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize("sums", [None, FP16_SUMS])
def test_forward_values_are_the_numpy_ones(fmt: str, sums: Any) -> None:
    x, w, targets = normal(3, 5, 40), normal(40, seed=1), torch.arange(15).reshape(3, 5)
    array, weight = (each.detach().numpy() for each in (x, w))
    pairs = [
        (torch_softmax(x, fmt, sums), numerics.softmax(array, fmt, sums=sums)),
        (torch_rms_norm(x, w, fmt, sums), numerics.rms_norm(array, weight, fmt, sums=sums)),
        (torch_cross_entropy(x, targets, fmt, sums), numerics.cross_entropy(array, targets, fmt, sums=sums).loss),
    ]  # fmt: skip
    for got, want in pairs:
        assert_bits_equal(got.detach().numpy(), np.asarray(want))


def test_without_a_format_all_is_torchs_own() -> None:
    x, w, targets = normal(15, 40), normal(40, seed=1), torch.arange(15)
    pairs = [
        (torch_softmax(x, None), torch.softmax(x, -1)),
        (torch_rms_norm(x, w, None), functional.rms_norm(x, (40,), w, 1e-6)),
        (torch_cross_entropy(x, targets, None), functional.cross_entropy(x, targets)),
        (torch_cross_entropy(x, targets, None, None, "elements"), functional.cross_entropy(x, targets) / 40),
    ]
    for got, want in pairs:
        assert_bits_equal(got.detach(), want.detach())


def test_the_gradient_of_softmax_is_its_formula_rounded_once() -> None:
    x, g = normal(6, 40), normal(6, 40, seed=1).detach()
    y = torch_softmax(x, "bf16")
    p, up = y.detach().double().numpy(), g.double().numpy()
    want = fp.quantize(p * (up - (up * p).sum(-1, keepdims=True)), "bf16").astype(np.float32)
    assert_bits_equal(gradients(y, g, x)[0].numpy(), want)


@pytest.mark.parametrize(("fmt", "near"), [("fp16", 2.0**-9), ("bf16", 2.0**-6)])
def test_gradients_come_as_near_as_the_format_allows(fmt: str, near: float) -> None:
    """Relative error of each whole gradient against float64's, and every element on the grid."""
    x, w = normal(4, 6, 40), normal(40, seed=1)
    g = normal(4, 6, 40, seed=3).detach()
    wide = [each.detach().double().requires_grad_() for each in (x, w)]
    cases = [
        (torch_softmax(x, fmt), torch.softmax(wide[0], -1), 1),
        (torch_rms_norm(x, w, fmt), functional.rms_norm(wide[0], (40,), wide[1], 1e-6), 2),
    ]
    for y, exact, count in cases:
        got, want = gradients(y, g, *(x, w)[:count]), gradients(exact, g.double(), *wide[:count])
        for gradient, reference in zip(got, want, strict=True):
            assert float((gradient - reference).norm() / reference.norm()) < near
            assert_bits_equal(gradient.numpy(), fp.quantize(gradient.numpy(), fmt))


def test_what_multiplies_the_loss_reaches_the_gradient_before_it_is_rounded() -> None:
    """Why a scale helps at all: multiplied afterwards, what became 0 would stay 0."""
    x, targets = normal(32, 1000), torch.zeros(32, dtype=torch.int64)
    plain = gradients(torch_cross_entropy(x, targets, "fp16", None, "elements"), None, x)[0]
    scaled = gradients(torch_cross_entropy(x, targets, "fp16", None, "elements") * 65536, None, x)[0]
    assert torch.count_nonzero(plain) < 0.5 * plain.numel()
    assert torch.count_nonzero(scaled) == scaled.numel()
    array = x.detach().numpy()
    want = numerics.cross_entropy(array, targets.numpy(), "fp16", mean_over="elements", scale=65536.0).gradient
    assert_bits_equal(scaled.numpy(), want)


def test_a_mask_gets_no_gradient_and_a_nan_is_not_hidden() -> None:
    x = torch.tensor([[1.0, -math.inf, 2.0]], requires_grad=True)
    y = torch_softmax(x, "bf16")
    assert gradients(y, torch.tensor([[1.0, 5.0, 3.0]]), x)[0][0, 1] == 0
    assert torch.isnan(gradients(torch_softmax(x, "bf16"), torch.tensor([[math.nan, 0.0, 0.0]]), x)[0]).all()


def test_an_unknown_mean_is_refused_with_and_without_a_format() -> None:
    for fmt in (None, "fp16"):
        with pytest.raises(ValueError, match="mean_over must be one of tokens, elements; got 'batch'"):
            torch_cross_entropy(normal(2, 3), torch.arange(2), fmt, None, "batch")
