"""`fp.analysis.attention`, its underflow of weights, and caches of keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from statistics import NormalDist
from typing import Any

import numpy as np

from fpsim.analysis.systems.attention.computing import Head, Traced, attend, cached, exact_attention, operands
from fpsim.analysis.systems.attention.recipe import AttentionRecipe, KVCache, recipe_of
from fpsim.analysis.systems.attention.results import (
    AttentionFigures,
    AttentionReport,
    CacheReport,
    CacheRow,
    WeightUnderflow,
    WeightUnderflowRow,
)
from fpsim.arrays import Array, float_array, format_of, without_gradient
from fpsim.casts.cast import quantize
from fpsim.errors import require_integer, require_kind, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format

# Caches that `kv_caches` compares by default: (format, scales, keys).
CACHES = (
    KVCache("bf16", "none"),
    KVCache("e4m3", "none"),
    KVCache("e4m3", "head"), KVCache("e4m3", "token"), KVCache("e4m3", "block"),
    KVCache("e5m2", "head"), KVCache("e5m2", "block"),
    KVCache("int8", "head"), KVCache("int8", "token"), KVCache("int8", "block"),
    KVCache("int4", "head"), KVCache("int4", "token"), KVCache("int4", "block"),
    KVCache("int4", "token", keys="channel"),
)  # fmt: skip


def attention(
    q: Any, k: Any, v: Any, recipe: str | AttentionRecipe = "bf16", *, scale: float | None = None,
    causal: bool = False, mask: Any = None, **changes: Any,
) -> AttentionReport:  # fmt: skip
    """Compute an attention in the formats of a recipe, and compare it with float64 on the values as they came.

    Args:
      q, k, v: arrays or torch tensors of floats (..., heads, queries, d), (..., heads, keys, d) and
        (..., heads, keys, dv); leading axes may be missing, and k and v may have fewer heads, each of which serves a
        group of q's.
      recipe: a name ("fp32", "bf16", "fp16": as eager frameworks, every tensor in that format, with a softmax in
        float32 inside; "bf16_flash", "fp16_flash", "fp8_flash":
        float32 scores and softmax in blocks of 128 keys) or a `fp.analysis.AttentionRecipe`.
      scale: what q.k is multiplied by; 1 / sqrt(d) by default.
      causal: query i counts keys 0 .. i + keys - queries alone.
      mask: array (queries, keys) or of the scores' shape: of truth values, False where a key does not count, or of
        floats that are added to scores.
      changes: fields of the recipe to set otherwise, such as probabilities="e4m3", block=64, cache=KVCache("int8").

    Returns:
      An AttentionReport; its figures are attributes, such as `.relative_error`.

    Raises:
      ValueError: shapes that do not fit, unknown recipes or fields.
      TypeError: arrays that hold no floats.

    Source: docs/attention.md states every rounding.

    Example:
      >>> import fpsim as fp
      >>> draws = np.random.default_rng(0)
      >>> q, k, v = (draws.standard_normal((2, 64, 32)) for _ in range(3))
      >>> plain, flash = fp.analysis.attention(q, k, v, "bf16"), fp.analysis.attention(q, k, v, "bf16_flash")
      >>> f"{plain.relative_error:.4f} {flash.relative_error:.4f} {flash.input_error:.4f}"
      '0.0048 0.0033 0.0026'
      >>> loud = fp.analysis.attention(100 * q, 100 * k, v, "fp16")
      >>> f"{loud.score_overflow:.2f} {loud.score_max:.0f}"
      '0.25 214634'
    """
    chosen = recipe_of(recipe).replace(**changes) if changes else recipe_of(recipe)
    heads, shape = _heads(q, k, v, mask, causal, scale)
    traced, exact, rows = [], [], []
    sums = _Sums(chosen)
    for head in heads:
        result, reference = attend(head, chosen), exact_attention(head)
        sums.add(head, result, reference)
        traced.append(result.output)
        exact.append(reference[0])
        with np.errstate(invalid="ignore", divide="ignore"):
            rows.append(np.linalg.norm(result.output - reference[0], axis=-1) / np.linalg.norm(reference[0], axis=-1))
    output = np.stack(traced)
    texts = {each.name: _text(getattr(chosen, each.name)) for each in fields(AttentionRecipe)}
    count, queries, channels = output.shape
    return AttentionReport(
        sums.figures(), texts, count, queries, heads[0].k.shape[0], channels,
        output.reshape(*shape, queries, channels), np.stack(rows),
    )  # fmt: skip


def _text(value: Any) -> str:
    return str(getattr(value, "name", value))


class _Sums:
    """Sums over heads behind the figures of a report."""

    def __init__(self, recipe: AttentionRecipe) -> None:
        self.recipe = recipe
        self.squares, self.errors, self.input_errors, self.largest = 0.0, 0.0, 0.0, 0.0
        self.signed, self.magnitudes, self.score_max = 0.0, 0.0, 0.0
        self.overflowed, self.scores = 0, 0
        self.resolutions: list[Array] = []
        self.kl: list[Array] = []
        self.variation: list[Array] = []
        self.lost, self.counted = 0, 0
        self.mass: list[Array] = []
        self.weight_sums: list[Array] = []
        self.repeated: list[Array] = []
        self.ulps: list[Array] = []

    def add(self, head: Head, result: Traced, reference: tuple[Array, Array]) -> None:
        """Add one head."""
        recipe, (exact, weights) = self.recipe, reference
        error = result.output.astype(np.float64) - exact
        rounded = [x.values.astype(np.float64) * x.scale for x in operands(head, recipe)]
        by_inputs = exact_attention(head._replace(q=rounded[0], k=rounded[1], v=rounded[2]))[0]
        known = np.isfinite(error)
        self.squares += float((exact[known] ** 2).sum())
        self.errors += float((error[known] ** 2).sum())
        self.input_errors += float(((by_inputs - exact)[known] ** 2).sum())
        self.largest = max(self.largest, float(np.abs(error[known]).max(initial=0.0)))
        self.signed += float((error[known] * np.sign(exact[known])).sum())
        self.magnitudes += float(np.abs(exact[known]).sum())
        self.score_max = max(self.score_max, result.largest)
        counts = weights > 0
        self.overflowed += int(result.overflowed.sum())
        self.scores += result.overflowed.size
        top = result.scores.max(axis=-1)
        finite = np.isfinite(top)
        fmt = recipe.scores
        assert isinstance(fmt, Format)
        self.resolutions.append(np.asarray(fmt.ulp(top[finite].astype(np.float64)), np.float64).reshape(-1))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            computed = result.weights / result.weights.sum(axis=-1, keepdims=True, dtype=np.float64)
            both = (computed > 0) & counts
            ratios = np.where(both, computed, 1.0) / np.where(both, weights, 1.0)
            self.kl.append(np.where(both, computed * np.log(ratios), 0.0).sum(axis=-1))
            self.variation.append(np.abs(computed - weights).sum(axis=-1) / 2)
            self.weight_sums.append(result.weights.sum(axis=-1, dtype=np.float64) / result.sums - 1)
            ulps = np.sign(exact) * error / _ulps(recipe.output, exact)
        gone = counts & (result.weights == 0)
        self.lost += int(gone.sum())
        self.counted += int(counts.sum())
        self.mass.append(np.where(gone, weights, 0.0).sum(axis=-1))
        self.repeated.append((result.scores == top[:, None]).sum(axis=-1) > 1)
        self.ulps.append(ulps.mean(axis=-1))

    def figures(self) -> AttentionFigures:
        """Return the figures of all heads."""
        norm = math.sqrt(self.squares)
        repeated, ulps = np.concatenate(self.repeated), np.concatenate(self.ulps)
        return AttentionFigures(
            relative_error=math.sqrt(self.errors) / norm if norm else math.nan,
            input_error=math.sqrt(self.input_errors) / norm if norm else math.nan,
            max_error=self.largest,
            bias=self.signed / self.magnitudes if self.magnitudes else math.nan,
            score_max=self.score_max,
            score_overflow=self.overflowed / self.scores,
            score_resolution=_median(np.concatenate(self.resolutions)),
            kl=_mean(np.concatenate(self.kl)),
            total_variation=_mean(np.concatenate(self.variation)),
            lost_weights=self.lost / self.counted if self.counted else math.nan,
            lost_mass=_mean(np.concatenate(self.mass)),
            weight_sum=_mean(np.concatenate(self.weight_sums)),
            repeated_rows=float(repeated.mean()),
            bias_repeated=_mean(ulps[repeated]),
            bias_single=_mean(ulps[~repeated]),
        )


def _ulps(fmt: Any, x: Array) -> Array:
    """Return the spacing of a format's values at float64 values."""
    return np.asarray(fmt.ulp(np.clip(np.abs(x), 0, fmt.max)), np.float64)


def _mean(x: Array) -> float:
    """Return the mean of the finite values; NaN where there are none."""
    known = x[np.isfinite(x)]
    return float(known.mean()) if known.size else math.nan


def _median(x: Array) -> float:
    return float(np.median(x)) if x.size else math.nan


def _stored(head: Head, cache: KVCache | None) -> tuple[Array, Array]:
    """Return keys and values as a cache gives them back."""
    if cache is None:
        return head.k, head.v
    return cached(head.k, cache, cache.keys or cache.scales), cached(head.v, cache, cache.scales)


def _heads(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None) -> tuple[list[Head], tuple[int, ...]]:
    """Return the heads of q, with the keys and values that serve each, and the axes before them."""
    names = dict(zip("qkv", (q, k, v), strict=True))
    arrays = {name: float_array(without_gradient(x), name)[0].astype(np.float64) for name, x in names.items()}
    for name, x in arrays.items():
        if x.ndim < 2 or not x.size:
            raise ValueError(f"{name} must be of shape (..., heads, tokens, channels) with elements; got {x.shape}.")
    shapes = {name: x.shape for name, x in arrays.items()}
    (queries, d), (keys, d_keys), (values, _) = (x.shape[-2:] for x in arrays.values())
    if d != d_keys or keys != values or shapes["k"][:-2] != shapes["v"][:-2]:
        raise ValueError(
            f"q and k must have the same channels, k and v the same heads and tokens; got {shapes['q']}, {shapes['k']} "
            f"and {shapes['v']}."
        )
    before, served = shapes["q"][:-2], shapes["k"][:-2]
    many, few = (before[-1] if before else 1), (served[-1] if served else 1)
    if len(before) != len(served) or before[:-1] != served[:-1] or many % few:
        raise ValueError(
            f"the heads of k and v must divide those of q, on the same axes before them; got {shapes['q']} and "
            f"{shapes['k']}."
        )
    factor = 1 / math.sqrt(d) if scale is None else _checked_scale(scale)
    masks = _masks(mask, causal, before, queries, keys)
    flat = {name: x.reshape(-1, *x.shape[-2:]) for name, x in arrays.items()}
    group = many // few
    heads = [
        Head(flat["q"][i], flat["k"][i // group], flat["v"][i // group], one, factor)
        for i, one in zip(range(len(flat["q"])), masks, strict=False)
    ]
    return heads, before


def _checked_scale(scale: Any) -> float:
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
        raise ValueError(f"scale must be a positive number, such as 0.125; got {shown(scale)}.")
    return float(np.float32(scale))


def _masks(mask: Any, causal: bool, before: tuple[int, ...], queries: int, keys: int) -> Iterator[Array | None]:
    """Iterate over the masks of heads, as what is added to scores."""
    hidden = None
    if causal:
        hidden = np.where(np.tri(queries, keys, keys - queries, dtype=bool), 0.0, -np.inf)
    if mask is not None:
        mask_array = np.asarray(without_gradient(mask))
        if mask_array.dtype.kind not in "bfiu" and format_of(mask_array.dtype) is None:
            raise TypeError(f"mask must be an array of truth values or floats; got {shown(mask)}. Or pass causal=True.")
        added = np.where(mask_array, 0.0, -np.inf) if mask_array.dtype == bool else mask_array.astype(np.float64)
        try:
            added = np.broadcast_to(added, (*before, queries, keys))
        except ValueError:
            raise ValueError(
                f"mask must broadcast to the scores, {(*before, queries, keys)}; got {mask_array.shape}."
            ) from None
        for one in added.reshape(-1, queries, keys):
            yield one if hidden is None else one + hidden
        return
    while True:
        yield hidden


def attention_underflow(
    fmt: FormatLike = "e4m3", *, spreads: Sequence[float] = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0), keys: int = 1024,
    scale: float = 1.0, sink: float | None = None, normalised: bool = False, trials: int = 256, seed: int = 0,
) -> WeightUnderflow:  # fmt: skip
    """Measure the share of attention weights that a format rounds to 0, against the spread of scores.

    Scores are N(0, spread**2). Weights are exp(score - maximum), as flash attention has them, times `scale`, or
    probabilities with `normalised`. The law says which share is below half the format's smallest value t:
    Phi(m - ln(scale / t) / spread), where m = Phi^-1((keys - 3/8) / (keys + 1/4)) is about the largest of the keys'
    standard normal numbers, or sink / spread where that is more; for probabilities Phi((L - ln(scale / t)) / spread),
    where L = ln(keys exp(spread**2 / 2) + exp(sink)) is about the logarithm of their sum. Of E4M3 t is 2**-10, so that
    10 ln 2 = 6.93 nats decide: with spread 1, a sink D and a scale of S the law is Phi(D - 6.93 - ln(S)).

    Args:
      fmt: the format of weights.
      spreads: standard deviations of scores, in nats.
      keys: scores of a row.
      scale: a factor of weights before they are rounded, such as 256.
      sink: the score of one more key, in nats above the mean of the others; None for none.
      normalised: weights are divided by their sum first.
      trials: rows.
      seed: of the draws.

    Returns:
      A WeightUnderflow.

    Raises:
      ValueError: numbers out of range, unknown formats.

    Source: docs/attention.md; the threshold of 6.93 nats is that of arXiv 2606.06521.

    Example:
      >>> import fpsim as fp
      >>> for row in fp.analysis.attention_underflow("e4m3", spreads=(1, 2, 4)).rows:
      ...     print(row.spread, f"{row.below:.3f} {row.law:.3f} {row.lost_mass:.4f}")
      1.0 0.000 0.000 0.0000
      2.0 0.421 0.408 0.0172
      4.0 0.926 0.933 0.0166
    """
    element = find_format(fmt)
    for name, value, lowest in (("keys", keys, 1), ("trials", trials, 1), ("seed", seed, 0)):
        require_integer(name, value, lowest)
    factor = _checked_scale(scale)
    if not element.has_zero:
        raise ValueError(f"weights need a format with a zero; got {element}. Take E4M3, for example.")
    widths = [float(each) for each in spreads]
    if not widths or not all(0 < width < math.inf for width in widths):
        raise ValueError(f"spreads must be positive numbers of nats; got {shown(spreads)}.")
    smallest = element.smallest_subnormal if element.subnormals else element.smallest_normal
    threshold = smallest / 2 / factor
    normal = NormalDist()
    top = normal.inv_cdf((keys - 0.375) / (keys + 0.25)) if keys > 1 else 0.0
    if sink is not None and (isinstance(sink, bool) or not isinstance(sink, (int, float)) or not math.isfinite(sink)):
        raise ValueError(f"sink must be a number of nats, or None; got {shown(sink)}.")
    draws = np.random.default_rng(seed).standard_normal((trials, keys))
    rows = []
    for width in widths:
        scores = width * draws
        if sink is not None:
            scores = np.concatenate([scores, np.full((trials, 1), float(sink))], axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        sums = weights.sum(axis=1, keepdims=True)
        weights = weights / sums if normalised else weights
        kept = np.asarray(quantize(weights * factor, element, overflow="saturate"))
        gone = (kept == 0) & (weights > 0)
        mass = np.where(gone, weights, 0.0).sum(axis=1) / (1.0 if normalised else sums[:, 0])
        nats = -math.log(threshold)
        highest = top if sink is None else max(top, sink / width)
        total = np.logaddexp(math.log(keys) + width**2 / 2, -math.inf if sink is None else sink)
        at = float(total - nats) / width if normalised else highest - nats / width
        below = float((weights < threshold).mean())
        rows.append(WeightUnderflowRow(width, below, normal.cdf(at), float(gone.mean()), float(mass.mean())))
    return WeightUnderflow(
        tuple(rows), element.name, factor, int(keys), int(trials), bool(normalised), int(seed), threshold,
        None if sink is None else float(sink),
    )  # fmt: skip


def kv_caches(
    q: Any,
    k: Any,
    v: Any,
    caches: KVCache | Sequence[KVCache] = CACHES,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> CacheReport:
    """Compare ways to store keys and values: what scores and outputs lose where all else is float64.

    Args:
      q, k, v, scale, causal: as of `fp.analysis.attention`.
      caches: `fp.analysis.KVCache` objects; by default BF16, FP8, INT8 and INT4 with scales for each token, head and
        1 x 32 block, and INT4 with keys by channel.

    Returns:
      A CacheReport.

    Raises:
      ValueError: as of `fp.analysis.attention`, or no cache.
      TypeError: something else than a KVCache.

    Example:
      >>> import fpsim as fp
      >>> draws = np.random.default_rng(0)
      >>> q, k, v = (draws.standard_normal((4, 128, 64)) for _ in range(3))
      >>> k[..., 3] *= 20  # a channel of outliers
      >>> caches = [fp.analysis.KVCache("int4"), fp.analysis.KVCache("int4", keys="channel")]
      >>> for row in fp.analysis.kv_caches(q, k, v, caches).rows:
      ...     print(row.cache, f"{row.bits_per_value:.3f} bits, errors {row.key_error:.2f}, {row.output_error:.2f}")
      INT4, token 4.250 bits, errors 0.24, 0.44
      INT4, token, keys by channel 4.188 bits, errors 0.13, 0.24
    """
    chosen = [caches] if isinstance(caches, KVCache) else list(caches)
    for cache in chosen:
        require_kind("a cache", cache, KVCache, "a fp.analysis.KVCache")
    if not chosen:
        raise ValueError("caches must have one or more fp.analysis.KVCache objects; got none.")
    heads, _ = _heads(q, k, v, None, causal, scale)
    exact = [exact_attention(head) for head in heads]
    rows = []
    for cache in chosen:
        sums = np.zeros((4, 2))  # of squares of keys, values, scores and outputs: errors and exact ones
        divergences = []
        for head, (output, weights) in zip(heads, exact, strict=True):
            keys, values = (x.astype(np.float64) for x in _stored(head, cache))
            stored = exact_attention(head._replace(k=keys, v=values))
            pairs = ((keys, head.k), (values, head.v), (head.q @ keys.T, head.q @ head.k.T), (stored[0], output))
            sums += [[((a - b) ** 2).sum(), (b**2).sum()] for a, b in pairs]
            both = (stored[1] > 0) & (weights > 0)
            ratio = np.where(both, stored[1], 1.0) / np.where(both, weights, 1.0)
            divergences.append((stored[1] * np.log(ratio)).sum(axis=-1))
        errors = np.sqrt(sums[:, 0] / np.where(sums[:, 1] > 0, sums[:, 1], np.nan))
        bits = cache.bits(*heads[0].k.shape)
        kl = _mean(np.concatenate(divergences))
        key, value, score, result = (float(x) for x in errors)
        rows.append(CacheRow(cache.name, bits, key, value, score, result, kl))
    queries, channels = heads[0].q.shape
    return CacheReport(tuple(rows), len(heads), queries, len(heads[0].k), channels)
