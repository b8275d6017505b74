"""`fp.analysis.attention`: computes an attention in the formats of a recipe and compares it with float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.systems.attention.computing import attend, exact_attention
from fpsim.analysis.systems.attention.heads import heads_of
from fpsim.analysis.systems.attention.recipe import AttentionRecipe, recipe_of
from fpsim.analysis.systems.attention.results import AttentionReport
from fpsim.analysis.systems.attention.sums import HeadSums
from fpsim.errors import require_kind


@np.errstate(all="ignore")  # the report counts overflows
def attention(
    q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, recipe: str | AttentionRecipe = "bf16", *,
    scale: float | None = None, causal: bool = False, mask: npt.ArrayLike | None = None, **changes: Any,
) -> AttentionReport:  # fmt: skip
    """Compute an attention in the formats of a recipe, and compare it with float64 on the unrounded arrays.

    Args:
      q, k, v: arrays or torch tensors of floats (..., heads, queries, d), (..., heads, keys, d) and
        (..., heads, keys, dv); leading axes may be missing. k and v may have fewer heads, if
        their number divides q's: consecutive heads of q then share one, as in grouped-query attention.
      recipe: an `fp.analysis.AttentionRecipe` or the name of one. "fp32", "bf16", "fp16": every tensor in that format,
        as in eager frameworks, with float32 arithmetic inside the softmax. "bf16_flash", "fp16_flash", "fp8_flash":
        float32 scores and softmax in blocks of 128 keys.
      scale: factor by which the scores q.k are multiplied, rounded to float32; 1 / sqrt(d) by default.
      causal: if True, query i uses only the keys 0 .. i + keys - queries.
      mask: array (queries, keys), or one that broadcasts to the scores (..., heads, queries, keys): bools, False where
        a key is masked, or numbers that are added to the scores.
      changes: values that replace fields of the recipe, such as probabilities="e4m3", block=64, cache=KVCache("int8").

    Returns:
      An AttentionReport; its metrics are attributes, such as `.relative_error`.

    Raises:
      ValueError: shapes that do not fit, an unknown recipe or field, or a mask with NaN or +Inf.
      TypeError: arrays that do not hold floats, or a causal that is not a bool.

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
    require_kind("causal", causal, (bool, np.bool_), "True or False")
    heads, shape = heads_of(q, k, v, mask, causal, scale)
    traced, rows = [], []
    sums = HeadSums(chosen, heads)
    for head in heads:
        result = attend(head, chosen)
        rows.append(sums.add(head, result, exact_attention(head)))
        traced.append(result.output)
    output = np.stack(traced)
    texts = {name: str(getattr(value, "name", value)) for name, value in vars(chosen).items()}
    count, queries, channels = output.shape
    return AttentionReport(
        sums.figures(), texts, count, queries, heads[0].k.shape[0], channels,
        output.reshape(*shape, queries, channels), np.stack(rows),
    )  # fmt: skip
