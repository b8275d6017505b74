"""The attention of one head in the formats of a recipe, with the intermediate arrays that the report needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.analysis.systems.attention.recipe import AttentionRecipe, KVCache
from fpsim.arithmetic.functions import add, divide, multiply, subtract
from fpsim.arrays import Array, words
from fpsim.casts.cast import decode, encode, quantize
from fpsim.formats.named import FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.products.reduce import sum as sum_of
from fpsim.scaling.recipes import TENSOR
from fpsim.scaling.scaled import encode_scaled, quantize_scaled
from fpsim.sums.accumulators import Accumulator, Sequential

Doubles = npt.NDArray[np.float64]
MOST_SCALED = 8  # largest number of bits for which inputs are scaled; sums of scaled BF16 inputs would overflow


class Head(NamedTuple):
    """The inputs of one attention head, as float64.

    Attributes:
      q, k, v: (queries, d), (keys, d), (keys, dv).
      mask: (queries, keys), numbers that are added to the scores, -Inf for masked keys; None for no mask.
      scale: factor by which q.k is multiplied.
    """

    q: Doubles
    k: Doubles
    v: Doubles
    mask: Doubles | None
    scale: float


class Traced(NamedTuple):
    """The output of one attention head, with the intermediate arrays that the metrics need.

    Attributes:
      output: (queries, dv), float32 values of the output format.
      scores: (queries, keys) float32, after the scale and the mask.
      overflowed: (queries, keys) bool, True where a score is Inf or NaN although it is finite in float64.
      weights: (queries, keys) float32, the rounded left operand of the product with v, divided by probability_scale:
        probabilities in the plain order, in flash order about exp(score - the row's largest score).
      sums: (queries,) float32, numbers by which the product with v was divided; 1 in the plain order.
      largest: the largest |q.k| before the scale, in float64.
    """

    output: Array
    scores: Array
    overflowed: Array
    weights: Array
    sums: Array
    largest: float


class Float:
    """Elementwise arithmetic in a float format `fmt`, on float32 arrays of values that the format can represent.

    The exact result of an operation is rounded to the format once, to nearest even.
    """

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt

    def round(self, x: Array) -> Array:
        """Return x, float64 or float32, rounded to the format, as float32."""
        return decode(encode(x, self.fmt), self.fmt, np.float32)

    def apply(self, operation: Any, a: Array, b: Array) -> Array:
        """Return `operation` (such as `fpsim.add`) of a and b, broadcast and rounded to the format once, as float32."""
        shape = np.broadcast_shapes(a.shape, b.shape)
        left, right = (encode(np.ascontiguousarray(np.broadcast_to(x, shape)), FP32) for x in (a, b))
        return decode(operation(left, right, fmt=FP32, out_fmt=self.fmt), self.fmt, np.float32)

    def exp(self, x: Array) -> Array:
        """Return exp(x), computed in float64 and rounded to the format, as float32."""
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            return self.round(np.exp(x.astype(np.float64)))

    def sum(self, x: Array) -> Array:
        """Return the sums of x (..., n) over its last axis, float32 (...), each addition rounded to the format.

        The elements are added one after another, from index 0 on.
        """
        sums = np.asarray(sum_of(np.ascontiguousarray(x), accumulate=Sequential(self.fmt), axis=-1))
        return decode(sums, self.fmt, np.float32) if sums.dtype.kind == "u" else np.asarray(sums, np.float32)


def cached(x: Array, cache: KVCache, scales: str) -> Array:
    """Return keys or values x (tokens, channels) as float32, rounded as the cache stores them.

    scales: which elements share a scale, a name as in the attribute `KVCache.scales`.
    """
    scaling = cache.scaling(scales)
    if scaling is None:
        return np.asarray(quantize(x, find_format(cache.fmt), overflow="saturate"), np.float32)
    return np.asarray(quantize_scaled(x.astype(np.float32), cache.fmt, scaling))


class AttentionOperand(NamedTuple):
    """One of q, k and v, rounded: it equals values * scale. `values` (float32) are values of the input format."""

    values: Array
    scale: np.float32


def operands(head: Head, recipe: AttentionRecipe) -> tuple[AttentionOperand, ...]:
    """Return q, k and v of a head, rounded to the recipe's input format.

    If the recipe has a cache, k and v are first rounded as the cache stores them.
    """
    keys, values = head.k, head.v
    if recipe.cache is not None:
        keys = cached(keys, recipe.cache, recipe.cache.keys or recipe.cache.scales)
        values = cached(values, recipe.cache, recipe.cache.scales)
    return tuple(_operand(x, recipe) for x in (head.q, keys, values))


def _operand(x: Array, recipe: AttentionRecipe) -> AttentionOperand:
    """Divide x, which is q, k or v of a head, by a scale and round the quotients to the recipe's input format.

    Return the quotients and the scale. With `recipe.scaled_inputs` and a format of up to 8 bits, the scale maps the
    largest |x| to the format's largest value; otherwise it is 1.
    """
    assert isinstance(recipe.inputs, Format)
    if not recipe.scaled_inputs or recipe.inputs.bits > MOST_SCALED:
        return AttentionOperand(np.asarray(quantize(x, recipe.inputs)), np.float32(1))
    scaled = encode_scaled(x.astype(np.float32), recipe.inputs, TENSOR)
    values = decode(words(np.asarray(scaled.codes)), recipe.inputs, np.float32)
    return AttentionOperand(values, np.float32(np.asarray(scaled.scales).reshape(-1)[0]))


def attend(head: Head, recipe: AttentionRecipe) -> Traced:
    """Compute the attention of one head with every rounding of a recipe.

    Return a Traced: the output, and the scores and weights that the metrics need.
    """
    q, k, v = operands(head, recipe)
    scores = Float(recipe.scores)  # type: ignore[arg-type]
    raw = scores.round(_product(q.values, k.values.T, recipe.inputs, recipe.inputs, recipe))
    factor = np.float32(head.scale) * q.scale * k.scale  # float32, in this order
    scaled = scores.apply(multiply, raw, np.array([[factor]], np.float32))
    exact = head.q @ head.k.T  # (queries, keys)
    overflowed = ~np.isfinite(scaled) & np.isfinite(exact)
    if head.mask is not None:
        scaled = scores.round(scaled + head.mask) if np.isfinite(head.mask).any() else scaled
        scaled = np.where(np.isneginf(head.mask), np.float32(-np.inf), scaled)
    output, weights, sums = (_plain if recipe.block is None else _flash)(scaled, v, recipe)
    return Traced(output, scaled, overflowed, weights, sums, float(np.abs(exact).max(initial=0.0)))


def _product(a: Array, b: Array, left: Any, right: Any, recipe: AttentionRecipe) -> Array:
    """Return a (m, k) @ b (k, n) as float32, added by the matrix unit or accumulator `recipe.accumulate`.

    left, right: the formats whose values a and b hold.
    """
    how = recipe.accumulate
    assert isinstance(how, (MatrixUnit, Accumulator))  # recipes store objects, never names
    formats = (how.a.carrier, how.b.carrier) if isinstance(how, MatrixUnit) else (left, right)
    codes = (encode(np.ascontiguousarray(x), fmt) for x, fmt in zip((a, b), formats, strict=True))
    product = matmul(*codes, accumulate=how, fmt=formats if isinstance(how, Accumulator) else None, strict=False)
    if isinstance(how, Accumulator) and product.dtype.kind == "u":
        product = decode(product, how.result_format, np.float32)
    return np.asarray(product, np.float32)


def _plain(scores: Array, v: AttentionOperand, recipe: AttentionRecipe) -> tuple[Array, Array, Array]:
    """Apply softmax to whole rows of scores (queries, keys), then multiply by v.

    v: the rounded values (keys, dv) and their scale. Probabilities are exponentials divided by their sum, then
    multiplied by `recipe.probability_scale` and rounded. Return (outputs (queries, dv), rounded probabilities / that
    scale (queries, keys), ones (queries,)), all float32.
    """
    softmax, scale = Float(recipe.softmax), np.float32(recipe.probability_scale)  # type: ignore[arg-type]
    shifted = softmax.apply(subtract, scores, _finite(scores.max(axis=-1, keepdims=True)))
    exponentials = softmax.exp(shifted)
    sums = softmax.sum(exponentials)
    quotients = softmax.apply(divide, exponentials, sums[:, None])
    weights = Float(recipe.probabilities).round(quotients * scale)  # type: ignore[arg-type]
    mixed = Float(recipe.unnormalised).round(  # type: ignore[arg-type]
        _product(weights, v.values, recipe.probabilities, recipe.inputs, recipe)
    )
    output = Float(recipe.output).round(mixed / scale * v.scale)  # type: ignore[arg-type]
    return output, weights / scale, np.ones(len(scores), np.float32)


def _flash(scores: Array, v: AttentionOperand, recipe: AttentionRecipe) -> tuple[Array, Array, Array]:
    """Compute softmax of scores (queries, keys) and the product with v, block after block of keys (flash attention).

    Weights are exp(score - maximum so far), rounded. At a new maximum, the running sum and the running product with v
    are multiplied by exp(old maximum - new maximum); after the last block the product is divided by the sum. v: the
    rounded values (keys, dv) and their scale. recipe: formats, number of keys of a block, arithmetic of products.
    Return (outputs (queries, dv), weights (queries, keys) relative to the last maximum, sums of weights (queries,)),
    all float32.
    """
    softmax, running = Float(recipe.softmax), Float(recipe.unnormalised)  # type: ignore[arg-type]
    rounded, scale = Float(recipe.probabilities), np.float32(recipe.probability_scale)  # type: ignore[arg-type]
    queries, keys = scores.shape
    assert recipe.block is not None
    top = np.full((queries, 1), -np.inf, np.float32)
    sums, mixed = np.zeros((queries, 1), np.float32), np.zeros((queries, v.values.shape[1]), np.float32)
    weights = np.zeros(scores.shape, np.float32)
    for start in range(0, keys, recipe.block):
        part = slice(start, min(start + recipe.block, keys))
        higher = np.maximum(top, scores[:, part].max(axis=-1, keepdims=True))
        decay = softmax.exp(softmax.apply(subtract, top, _finite(higher)))
        exponentials = softmax.exp(softmax.apply(subtract, scores[:, part], _finite(higher)))
        sums = softmax.apply(add, softmax.apply(multiply, sums, decay), softmax.sum(exponentials)[:, None])
        weights[:, :start] *= decay  # earlier weights become relative to the new maximum
        block = rounded.round(exponentials * scale)
        weights[:, part] = block / scale
        product = running.round(_product(block, v.values[part], recipe.probabilities, recipe.inputs, recipe))
        mixed = product if start == 0 else running.apply(add, running.apply(multiply, mixed, decay), product)
        top = higher
    with np.errstate(invalid="ignore", divide="ignore"):
        output = Float(recipe.output).round(softmax.apply(divide, mixed, sums) / scale * v.scale)  # type: ignore[arg-type]
    return output, weights, sums[:, 0]


def _finite(maximum: Any) -> Any:
    """Return maxima of rows with 0 in place of -Inf (all keys masked), so that score - maximum is -Inf and not NaN."""
    return np.where(np.isneginf(maximum), maximum.dtype.type(0), maximum)


def exact_attention(head: Head) -> tuple[Doubles, Doubles]:
    """Return (outputs (queries, dv), probabilities (queries, keys)) of a head, computed in float64."""
    scores = (head.q @ head.k.T) * head.scale
    if head.mask is not None:
        scores = scores + head.mask
    with np.errstate(under="ignore", invalid="ignore", divide="ignore"):
        weights: Doubles = np.exp(scores - _finite(scores.max(axis=-1, keepdims=True)))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ head.v, weights
