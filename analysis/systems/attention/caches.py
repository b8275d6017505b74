"""`fp.analysis.kv_caches`: errors of scores and outputs when a cache stores keys and values in low precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.iterables import as_list
from fpsim.analysis.measures.log_probabilities import divergence_of_probabilities
from fpsim.analysis.systems.attention.computing import cached, exact_attention
from fpsim.analysis.systems.attention.heads import heads_of
from fpsim.analysis.systems.attention.recipe import KVCache
from fpsim.analysis.systems.attention.results import CacheReport, CacheRow
from fpsim.analysis.systems.attention.sums import exponent_of, mean_of
from fpsim.errors import require_kind, shown

# Caches that `kv_caches` compares by default.
CACHES = (
    KVCache("bf16", "none"),
    KVCache("e4m3", "none"),
    KVCache("e4m3", "head"), KVCache("e4m3", "token"), KVCache("e4m3", "block"),
    KVCache("e5m2", "head"), KVCache("e5m2", "block"),
    KVCache("int8", "head"), KVCache("int8", "token"), KVCache("int8", "block"),
    KVCache("int4", "head"), KVCache("int4", "token"), KVCache("int4", "block"),
    KVCache("int4", "token", keys="channel"),
)  # fmt: skip


@np.errstate(all="ignore")  # the report shows overflows as Inf or NaN
def kv_caches(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    caches: KVCache | Sequence[KVCache] = CACHES,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> CacheReport:
    """Measure the errors of attention's scores and outputs for several caches of keys and values, all else in float64.

    Args:
      q, k, v, scale, causal: as for `fp.analysis.attention`.
      caches: `fp.analysis.KVCache` objects to compare. By default: BF16 and E4M3 without scales; E4M3, INT8 and INT4
        with a scale for each head, token or 1 x 32 block; E5M2 with a scale for each head or 1 x 32 block; and INT4
        with a scale for each channel of the keys and each token of the values.

    Returns:
      A CacheReport, one row for each cache.

    Raises:
      ValueError: as for `fp.analysis.attention`, or there is no cache.
      TypeError: a cache is not a KVCache.

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
    chosen = [caches] if isinstance(caches, KVCache) else as_list(caches)
    if chosen is None:
        raise TypeError(f"caches must be an fp.analysis.KVCache or several; got {shown(caches)}.")
    for cache in chosen:
        require_kind("a cache", cache, KVCache, "an fp.analysis.KVCache")
    if not chosen:
        raise ValueError("caches must have one or more fp.analysis.KVCache objects; got none.")
    heads, _ = heads_of(q, k, v, None, causal, scale)
    exact = [exact_attention(head) for head in heads]
    of_values = exponent_of(head.v for head in heads)
    exponents = (  # of keys, values, scores and outputs, so that no square overflows
        exponent_of(head.k for head in heads), of_values, exponent_of(head.q @ head.k.T for head in heads), of_values,
    )  # fmt: skip
    (tokens, width), channels = heads[0].k.shape, heads[0].v.shape[1]
    rows = []
    for cache in chosen:
        sums = np.zeros((4, 2))  # squares of (error, exact value) of keys, values, scores and outputs
        divergences = []
        for head, (output, weights) in zip(heads, exact, strict=True):
            keys = cached(head.k, cache, cache.keys or cache.scales).astype(np.float64)
            values = cached(head.v, cache, cache.scales).astype(np.float64)
            stored = exact_attention(head._replace(k=keys, v=values))
            pairs = ((keys, head.k), (values, head.v), (head.q @ keys.T, head.q @ head.k.T), (stored[0], output))
            sums += [
                [(np.ldexp(x, -exponent) ** 2).sum(where=~np.isnan(b)) for x in (a - b, b)]
                for (a, b), exponent in zip(pairs, exponents, strict=True)
            ]
            divergences.append(divergence_of_probabilities(stored[1], weights))
        errors = np.sqrt(sums[:, 0] / np.where(sums[:, 1] > 0, sums[:, 1], np.nan))
        bits = cache.bits(tokens, width, channels)
        kl = mean_of(np.concatenate(divergences))
        key, value, score, result = (float(x) for x in errors)
        rows.append(CacheRow(cache.name, bits, key, value, score, result, kl))
    return CacheReport(tuple(rows), len(heads), len(heads[0].q), tokens, channels)
