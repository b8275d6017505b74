"""Running sums over the heads of an attention, from which the report's metrics are computed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from fpsim.analysis.measures.log_probabilities import divergence_of_probabilities
from fpsim.analysis.systems.attention.computing import Head, Traced, exact_attention, operands
from fpsim.analysis.systems.attention.recipe import AttentionRecipe
from fpsim.analysis.systems.attention.results import AttentionFigures
from fpsim.arrays import Array
from fpsim.formats.named import Format


class HeadSums:
    """Running sums over the heads of an attention: `add` each head, then read the metrics from `figures`.

    recipe: the formats in which the attention was computed. heads: all heads that will be added.
    """

    def __init__(self, recipe: AttentionRecipe, heads: Sequence[Head]) -> None:
        self.recipe = recipe
        self._exponent = exponent_of(head.v for head in heads)
        self.squares = self.errors = self.input_errors = self.largest = 0.0
        self.signed = self.magnitudes = self.score_max = 0.0
        self.overflowed = self.scores = self.lost = self.counted = 0
        self.rows: dict[str, list[Array]] = defaultdict(list)  # values of each row, a query of one head

    def add(self, head: Head, result: Traced, reference: tuple[Array, Array]) -> Array:
        """Add the errors of one head; return norm(error) / norm(exact output) of each query, (queries,).

        head: q, k, v, mask and scale. result: output, scores and weights in the recipe's formats. reference: the head's
        (outputs (queries, dv), softmax weights (queries, keys)) in float64.
        """
        recipe, (exact, weights) = self.recipe, reference
        error = result.output.astype(np.float64) - exact
        rounded = [x.values.astype(np.float64) * x.scale for x in operands(head, recipe)]
        by_inputs = exact_attention(head._replace(q=rounded[0], k=rounded[1], v=rounded[2]))[0]
        known = np.isfinite(error)
        # sums are of elements divided by a power of two near the largest |v|, so that no square over- or underflows
        sizes, errors, by_inputs = (np.ldexp(x, -self._exponent) for x in (exact, error, by_inputs - exact))
        self.squares += float((sizes[known] ** 2).sum())
        self.errors += float((errors[known] ** 2).sum())
        self.input_errors += float((by_inputs[known] ** 2).sum())
        self.largest = max(self.largest, float(np.abs(error[known]).max(initial=0.0)))
        self.signed += float((errors[known] * np.sign(exact[known])).sum())
        self.magnitudes += float(np.abs(sizes[known]).sum())
        self.score_max = max(self.score_max, result.largest)
        counts = weights > 0
        self.overflowed += int(result.overflowed.sum())
        self.scores += result.overflowed.size
        top = result.scores.max(axis=-1)
        finite = np.isfinite(top)
        fmt = recipe.scores
        assert isinstance(fmt, Format)
        assert isinstance(recipe.output, Format)
        self.rows["resolution"].append(np.asarray(fmt.ulp(top[finite].astype(np.float64)), np.float64).reshape(-1))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            computed = result.weights / result.weights.sum(axis=-1, keepdims=True, dtype=np.float64)
            self.rows["kl"].append(divergence_of_probabilities(computed, weights))
            self.rows["variation"].append(np.abs(computed - weights).sum(axis=-1) / 2)
            self.rows["weight_sum"].append(result.weights.sum(axis=-1, dtype=np.float64) / result.sums - 1)
            spacing = np.asarray(recipe.output.ulp(np.clip(np.abs(exact), 0, recipe.output.max)), np.float64)
            ulps = np.sign(exact) * error / spacing
        zeroed = counts & (result.weights == 0)
        self.lost += int(zeroed.sum())
        self.counted += int(counts.sum())
        self.rows["lost_mass"].append(np.where(zeroed, weights, 0.0).sum(axis=-1))
        self.rows["repeated"].append((result.scores == top[:, None]).sum(axis=-1) > 1)
        self.rows["ulps"].append(ulps.mean(axis=-1))
        return np.asarray(np.linalg.norm(errors, axis=-1) / np.linalg.norm(sizes, axis=-1))

    def figures(self) -> AttentionFigures:
        """Return the metrics over all heads that were added; NaN where a metric has nothing to average."""
        norm = math.sqrt(self.squares)
        rows = {name: np.concatenate(values) for name, values in self.rows.items()}
        repeated, ulps, resolutions = rows["repeated"], rows["ulps"], rows["resolution"]
        return AttentionFigures(
            relative_error=math.sqrt(self.errors) / norm if norm else math.nan,
            input_error=math.sqrt(self.input_errors) / norm if norm else math.nan,
            max_error=self.largest,
            bias=self.signed / self.magnitudes if self.magnitudes else math.nan,
            score_max=self.score_max,
            score_overflow=self.overflowed / self.scores,
            score_resolution=float(np.median(resolutions)) if resolutions.size else math.nan,
            kl=mean_of(rows["kl"]),
            total_variation=mean_of(rows["variation"]),
            lost_weights=self.lost / self.counted if self.counted else math.nan,
            lost_mass=mean_of(rows["lost_mass"]),
            weight_sum=mean_of(rows["weight_sum"]),
            repeated_rows=float(repeated.mean()),
            bias_repeated=mean_of(ulps[repeated]),
            bias_single=mean_of(ulps[~repeated]),
        )


def exponent_of(arrays: Iterable[Array]) -> int:
    """Return the e for which the largest finite magnitude in several arrays is in 2**(e - 1) .. 2**e; 0 for zeros."""
    return math.frexp(max(float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in arrays))[1]


def mean_of(x: Array) -> float:
    """Return the mean of the finite values of x; NaN if there are none."""
    known = x[np.isfinite(x)]
    return float(known.mean()) if known.size else math.nan
