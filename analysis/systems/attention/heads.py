"""Splits q, k, v and the mask of an attention into single heads, after checks of shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import repeat
from numbers import Real
from typing import Any

import numpy as np

from fpsim.analysis.systems.attention.computing import Head
from fpsim.arrays import Array, as_array, float_array, format_of, without_gradient
from fpsim.errors import shown
from fpsim.formats.named import FP32


def heads_of(
    q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None
) -> tuple[list[Head], tuple[int, ...]]:
    """Return (a Head for each head of q, shape of q without its last two axes, queries and d).

    q, k, v, mask: as for `fp.analysis.attention`. causal: whether query i uses only the keys 0 .. i + keys - queries.
    scale: factor of q.k, or None for 1 / sqrt(d).

    Raises:
      ValueError: shapes that do not fit, a scale that is not positive, or a mask with NaN or +Inf.
      TypeError: arrays that do not hold floats.
    """
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
            f"q must have the leading axes of k and v, and a multiple of their heads; got {shapes['q']} and "
            f"{shapes['k']}."
        )
    factor = 1 / math.sqrt(d) if scale is None else checked_scale(scale)
    masks = _masks(mask, causal, before, queries, keys)
    flat = {name: x.reshape(-1, *x.shape[-2:]) for name, x in arrays.items()}
    group = many // few
    heads = [
        Head(flat["q"][i], flat["k"][i // group], flat["v"][i // group], head_mask, factor)
        for i, head_mask in zip(range(len(flat["q"])), masks, strict=False)
    ]
    return heads, before


def checked_scale(scale: Any) -> float:
    """Return a scale rounded to float32; raise ValueError unless it is a number > 0 in the range of float32."""
    number = isinstance(scale, Real) and not isinstance(scale, bool)
    if not number or not FP32.smallest_subnormal <= scale <= FP32.max:
        raise ValueError(f"scale must be a positive number of float32, such as 0.125; got {shown(scale)}.")
    return float(np.float32(scale))


def _masks(mask: Any, causal: bool, before: tuple[int, ...], queries: int, keys: int) -> Iterator[Array | None]:
    """Yield for each head the numbers (queries, keys) to add to its scores, with -Inf for masked keys.

    If `mask` is None, yield the causal mask again and again, or None if `causal` is False. mask: bools, False where a
    key is masked, or numbers to add, broadcast to (*before, queries, keys). before: shape of the leading axes of q.
    """
    hidden = None
    if causal:
        hidden = np.where(np.tri(queries, keys, keys - queries, dtype=bool), 0.0, -np.inf)
    if mask is None:
        return repeat(hidden)
    mask_array = np.asarray(as_array(without_gradient(mask)))
    if mask_array.dtype.kind not in "bfiu" and format_of(mask_array.dtype) is None:
        raise TypeError(f"mask must be an array of bools or floats; got {shown(mask)}. Or pass causal=True.")
    added = np.where(mask_array, 0.0, -np.inf) if mask_array.dtype == bool else mask_array.astype(np.float64)
    if not (added < np.inf).all():
        raise ValueError("mask must hold numbers to add, or -Inf for masked keys; got NaN or Inf in it.")
    shape = (*before, queries, keys)
    try:
        added = np.broadcast_to(added, shape)
    except ValueError:
        raise ValueError(f"mask must broadcast to the scores, {shape}; got {mask_array.shape}.") from None
    return (x if hidden is None else x + hidden for x in added.reshape(-1, queries, keys))
