"""Attention's products: chains of fused multiply-adds over batches and heads, or casts by a recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.recipes import Numerics
from fpsim.recipes.linear_recipe import LinearRecipe, Product
from fpsim.testing import assert_bits_equal
from fpsim.torch.operators import Tensor
from tests.kit.sweeps import in_turn
from tests.oracles import arithmetic as ao
from tests.oracles.training import Single, array_of, singles
from tests.train.operations.rows import Array, rows, usual

torch = pytest.importorskip("torch")
from fpsim.train.operations.operations import AttentionProduct, AttentionProducts, Operations  # noqa: E402

CHAIN = fp.FusedMultiplyAdd(fp.FP32)


def chained(a: Array, b: Array) -> Array:
    """Return a @ b, (M, N), each element one chain of fused multiply-adds from +0 along K."""
    columns, total = [singles(column) for column in b.T], []
    for row in map(singles, a):
        for column in columns:
            code = 0
            for x, y in zip(row, column, strict=True):
                code = ao.compute("fma", [x.code, y.code, code], [fp.FP32] * 3, fp.FP32, ao.PLAIN)[0]
            total.append(Single.of_code(code))
    return array_of(total).reshape(len(a), -1)


def product(a: Array, b: Array, products: AttentionProducts, slopes: Array) -> tuple[Array, Array, Array]:
    """Return a @ b and both gradients."""
    left, right = (torch.from_numpy(x.copy()).requires_grad_() for x in (a, b))
    result = AttentionProduct.apply(left, right, products)
    result.backward(torch.from_numpy(slopes))
    return result.detach().numpy(), left.grad.numpy(), right.grad.numpy()


def test_float32_products_and_gradients_are_chains_along_k() -> None:
    a, b, slopes = usual((2, 3, 5, 9), 0), usual((2, 3, 9, 4), 1), usual((2, 3, 5, 4), 2)
    b[0, 0] = rows(4, 3)[[0, 1, 2, 3, 4, 5, 0, 1, 2]]  # subnormals, infinities and NaN
    got, of_a, of_b = product(a, b, AttentionProducts(None, CHAIN), slopes)
    for place in np.ndindex(2, 3):
        assert_bits_equal(got[place], chained(a[place], b[place]))
        assert_bits_equal(of_a[place], chained(slopes[place], b[place].T))
        assert_bits_equal(of_b[place], chained(slopes[place].T, a[place]).T)


def test_the_recipe_names_another_accumulator() -> None:
    a, b = usual((2, 5, 33), 3), usual((2, 33, 4), 4)
    chain = fp.Sequential(fp.FP32)
    got, _, _ = product(a, b, AttentionProducts(None, chain), usual((2, 5, 4), 5))
    assert_bits_equal(got, fp.matmul(a, b, accumulate=chain))
    assert not np.array_equal(got, fp.matmul(a, b, accumulate=CHAIN))


ROUNDED = Product(CHAIN, out_fmt="bf16")
RECIPES: list[Any] = [
    fp.recipes.find_linear("BF16"),
    LinearRecipe("bf16", "bf16", "bf16", fprop=ROUNDED, dgrad=ROUNDED, wgrad=ROUNDED),
    LinearRecipe("e4m3", "e4m3", "e5m2", overflow="saturate"),  # which names no sums
]


@in_turn("recipe", RECIPES)
def test_casts_by_a_recipe_are_those_of_a_linear_layer(recipe: LinearRecipe) -> None:
    products = AttentionProducts(Numerics(attention=recipe).attention, CHAIN)  # type: ignore[arg-type]
    a, b, slopes = usual((2, 5, 33), 6), usual((2, 33, 4), 7), usual((2, 5, 4), 8)
    got, of_a, of_b = product(a, b, products, slopes)
    chained_recipe = recipe.replace(
        **{name: Product(CHAIN) for name in ("fprop", "dgrad", "wgrad") if getattr(recipe, name).accumulate is None}
    )
    for i in range(2):  # a linear layer has x @ w^T
        plain: Any = torch.nn.Linear(33, 4, bias=False)
        plain.weight.data = torch.from_numpy(b[i].T.copy())
        layer: Any = fp.torch.QuantLinear.from_linear(plain, chained_recipe)
        x: Any = torch.from_numpy(a[i].copy()).requires_grad_()
        y = layer(x)
        y.backward(torch.from_numpy(slopes[i]))
        for ours, theirs in ((got[i], y.detach()), (of_a[i], x.grad), (of_b[i].T, layer.weight.grad)):
            assert_bits_equal(ours, theirs.numpy())


def test_attention_is_softmax_of_its_product_times_values() -> None:
    q, k, v = (torch.from_numpy(usual((2, 2, 7, 8), seed)) for seed in (9, 10, 11))
    got: Tensor = Operations(specified=True).attention(q, k, v, 0.25)
    scores = fp.matmul(q.numpy(), k.mT.numpy(), accumulate=CHAIN)
    for i in range(7):
        shares = fp.softmax(scores[:, :, i : i + 1, : i + 1] * np.float32(0.25), axis=-1)
        zeros = np.zeros((2, 2, 1, 6 - i), np.float32)
        want = fp.matmul(np.concatenate([shares, zeros], -1), v.numpy(), accumulate=CHAIN)
        assert_bits_equal(got[:, :, i : i + 1].numpy(), want)
