"""Comparisons of all-reduce algorithms: errors relative to exact sums, dependence on the order of ranks, equal bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fpsim.analysis.measures.iterables import as_list
from fpsim.analysis.systems.collectives.algorithms import (
    Algorithm,
    BufferSpan,
    TwoLevel,
    algorithm_of,
    largest_group,
    name_of,
    split,
)
from fpsim.analysis.systems.collectives.contributions import (
    CodeRows,
    Contributions,
    ContributionsLike,
    Permuted,
    Source,
)
from fpsim.analysis.systems.collectives.exact import exact_reduce, exact_values
from fpsim.analysis.systems.collectives.reduce import reduce_rows
from fpsim.analysis.systems.collectives.reduction import AVERAGES
from fpsim.analysis.systems.collectives.results import CollectiveGrowth, CollectiveReport, CollectiveRow
from fpsim.analysis.systems.collectives.rounding import Adder
from fpsim.arrays import Array
from fpsim.casts.cast import decode, quantize
from fpsim.errors import is_integer, require_integer, require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding

Choice = str | Algorithm | tuple[Any, Any]
ONE_SHOT: Choice = ("direct", "fp32")
EVERY: tuple[Choice, ...] = ("ring", "tree", "recursive_halving", "two_level", ONE_SHOT, "direct")
MOST_ELEMENTS = 1 << 31
MOST_PERMUTATIONS = 1_000_000  # each is another reduction
DISTRIBUTIONS = ("normal", "half_normal", "uniform", "lognormal")


def report(
    x: ContributionsLike, fmt: FormatLike, algorithms: Sequence[Choice] | None = None, *, average: str | None = None,
    rounding: str | Rounding = "nearest_even", seed: int | None = None, permutations: int = 3,
    order_seed: int = 0, ranks: int | None = None,
) -> CollectiveReport:  # fmt: skip
    """Compare the sums that several algorithms compute from the same contributions with the exact sums.

    Args:
      x, fmt, average, rounding, seed, ranks: as for `collectives.all_reduce`; sums beyond `fmt`'s range are Inf or NaN.
      algorithms: names, algorithm objects, or pairs (algorithm, accumulation format); None for all that support the
        number of ranks, and ("direct", "fp32"), which is a one-shot reduction in float32.
      permutations: number of random orders of the ranks that are tried in addition to the given one; 0 for none.
      order_seed: seed of these random orders.

    Returns:
      A CollectiveReport, a row for each algorithm. Errors are relative to exact sums of the unrounded contributions;
      `exact_share` compares with exact sums of the contributions rounded to `fmt`.

    Raises:
      ValueError, TypeError: as for `collectives.all_reduce`, or there is no algorithm.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal((64, 1000), np.float32)
      >>> report = fp.analysis.collectives.report(fp.quantize(x, "bf16"), "bf16", ["ring", "tree", "direct"])
      >>> for row in report.rows:
      ...     print(row.algorithm, f"{row.relative_error:.4f} {row.order_changed:.2f} {row.exact_share:.2f}")
      ring 0.0090 1.00 0.22
      tree 0.0043 0.91 0.38
      direct 0.0017 0.00 1.00
    """
    if average is not None:
        require_word("average", average, AVERAGES)
    require_integer("permutations", permutations, 0)
    if permutations > MOST_PERMUTATIONS:
        raise ValueError(f"permutations must be an integer in 0 .. {MOST_PERMUTATIONS:,}; got {shown(permutations)}.")
    require_integer("order_seed", order_seed, 0)
    source = Source(x, ranks)
    choices = _checked(algorithms, source.count)
    high, low = exact_values(source)
    if average is not None:
        high, low = _divided(high, low, source.count)
    orders = [
        np.random.default_rng([order_seed, number]).permutation(source.count).tolist() for number in range(permutations)
    ]
    rounded = None
    rows, sums_of_all = [], []
    for algorithm, accumulate in choices:
        adder = Adder(fmt, accumulate, rounding, seed, "nonfinite")
        source.keep = largest_group(algorithm, source.count)
        contributions = Contributions(source, adder, average)
        if rounded is None:
            plain = Adder(fmt, None, "nearest_even", None, "nonfinite")
            sums = exact_reduce(contributions, plain, list(range(source.count)), 0, source.size)
            rounded = plain.mean(sums, average, source.count)
        orderings: list[CodeRows] = [contributions, *(Permuted(contributions, order) for order in orders)]
        codes, *others = (
            adder.mean(reduce_rows(algorithm, terms, adder), average, source.count) for terms in orderings
        )
        sums_of_all.append(codes)
        name = name_of(algorithm) + (f" in {adder.accumulate}" if adder.accumulate is not None else "")
        rows.append(_row(name, codes, others, (high, low), adder, source.count, rounded))
    differing = tuple(tuple(float((a != b).mean()) for b in sums_of_all) for a in sums_of_all)
    name = find_format(fmt).name
    return CollectiveReport(tuple(rows), differing, name, source.count, source.size, permutations, average)


def growth(
    fmt: FormatLike, ranks: Sequence[int] = (8, 32, 128, 512),
    algorithms: Sequence[Choice] = ("ring", "tree", ONE_SHOT), *, distribution: str = "normal",
    size: int = 4096, seed: int = 0,
) -> CollectiveGrowth:  # fmt: skip
    """Measure the growth of the error of all-reduces with the number of ranks.

    Contributions are independent draws, rounded to `fmt` first, so that all of the error is the reduction's. Rank r
    has the same contribution for every number of ranks.

    Args:
      fmt: the format of contributions and of every message between ranks.
      ranks: numbers of ranks to measure, one or several.
      algorithms: one or several algorithms, as for `collectives.report`; by default a ring, a tree, and a
        one-shot reduction with additions in float32.
      distribution: "normal" (N(0, 1)), "half_normal", "uniform" (U[0, 1)) or "lognormal".
      size: elements of the buffer.
      seed: seed of the draws.

    Returns:
      A CollectiveGrowth: the relative error for each algorithm and number of ranks.

    Raises:
      ValueError: a name is unknown, or a number is out of range or does not fit an algorithm.
      TypeError: algorithms or ranks are neither one nor several.

    Source: Megatron-LM issue 6199 states the law of growth (docs/collectives.md).

    Example:
      >>> import fpsim as fp
      >>> report = fp.analysis.collectives.growth("bf16", ranks=(8, 32, 128))
      >>> {name: round(p, 1) for name, p in report.exponents.items()}
      {'ring': 0.5, 'tree': 0.2, 'direct in FP32': -0.0}
    """
    require_word("distribution", distribution, DISTRIBUTIONS)
    require_integer("size", size, 1)
    if size > MOST_ELEMENTS:
        raise ValueError(f"size must be at most 2**31 elements; got {shown(size)}.")
    choices = [algorithms] if isinstance(algorithms, (str, Algorithm)) else as_list(algorithms)
    if choices is None:
        raise TypeError(f"algorithms must be a list such as ['ring', 'tree']; got {shown(algorithms)}.")
    if not choices:
        raise ValueError("algorithms must name one or more, such as 'ring'; got none.")
    require_integer("seed", seed, 0)
    numbers: Any = [ranks] if is_integer(ranks) else as_list(ranks)
    if numbers is None:
        raise TypeError(f"ranks must be an integer or several, such as (8, 32); got {shown(ranks)}.")
    if not numbers:
        raise ValueError("ranks must hold one or more numbers of ranks; got none.")
    for number in numbers:
        require_integer("ranks", number, 1)
    counts = sorted({int(n) for n in numbers})
    element = find_format(fmt)

    def contribution(rank: int) -> Array:
        draws = np.random.default_rng([seed, rank])
        normal = draws.standard_normal(size) if distribution != "uniform" else draws.random(size)
        values = {"half_normal": np.abs, "lognormal": np.exp}.get(distribution, np.asarray)(normal)
        return quantize(values, element)

    names: list[str] = []
    errors = []
    for choice in choices:
        curve = []
        for count in counts:
            (row,) = report(contribution, element, [choice], permutations=0, ranks=count).rows
            curve.append(row.relative_error)
        names.append(row.algorithm)
        errors.append(tuple(curve))
    return CollectiveGrowth(tuple(names), tuple(counts), tuple(errors), element.name, distribution, size, seed)


def _divided(high: Array, low: Array, count: int) -> tuple[Array, Array]:
    """Return (high + low) / count as two float64 arrays, the second of which is the remainder of the first.

    count: an integer up to 2**20, so that its products with halves of a significand are exact.
    """
    with np.errstate(all="ignore"):
        quotient = high / count
        upper = (quotient.view(np.uint64) & np.uint64(0xFFFFFFFFF8000000)).view(np.float64)  # 26 bits
        rest = (high - upper * count) - (quotient - upper) * count
    return quotient, np.where(np.isfinite(rest), rest + low, 0.0) / count


def _row(
    name: str, codes: Array, others: list[Array], exact: tuple[Array, Array], adder: Adder, ranks: int, rounded: Array
) -> CollectiveRow:
    """Return the report's row for one algorithm, named `name`.

    codes, others: codes of its sums in the given order of ranks, and in each permutation. exact: exact sums as (high,
    low) float64. adder: the format of the codes. ranks: number of ranks, each of which owns a shard. rounded: codes of
    the exact sums of the contributions after their rounding, rounded to nearest even.
    """
    high, low = exact
    with np.errstate(invalid="ignore"):
        errors = [decode(sums, adder.fmt, np.float64) - high - low for sums in (codes, *others)]
    norms = [_relative(error, high) for error in errors]
    defined = [norm for norm in norms if not math.isnan(norm)] or norms
    error, size = errors[0], np.abs(high)
    known = np.isfinite(error)
    nonzero = known & (size > 0)
    largest = float(np.max(np.abs(error[nonzero]) / size[nonzero])) if nonzero.any() else math.nan
    total = float(size[known].sum())
    bias = float((error[known] * np.sign(high[known])).sum()) / total if total else math.nan
    shards = split(BufferSpan(0, codes.size), ranks)
    by_rank = [_relative(error[a:b], high[a:b]) if b > a else math.nan for a, b in shards]
    worst = int(np.nanargmax(by_rank)) if not np.isnan(by_rank).all() else 0
    changed = np.zeros(codes.size, bool)
    for other in others:
        changed |= other != codes
    return CollectiveRow(
        name, norms[0], largest, bias, float((codes == rounded).mean()),
        float(changed.mean()) if others else math.nan, min(defined), max(defined), worst, by_rank[worst],
        float(1 - known.mean()),
    )  # fmt: skip


def _relative(error: Array, exact: Array) -> float:
    """Return norm(error) / norm(exact) over the elements whose error is finite; NaN if norm(exact) is 0.

    error, exact: float64 arrays (n,) of the errors and of the exact sums.
    """
    known = np.isfinite(error)
    exponent = math.frexp(float(np.abs(exact[known]).max(initial=0.0)))[1]  # so that no square over- or underflows
    norm, size = (float(np.linalg.norm(np.ldexp(x[known], -exponent))) for x in (error, exact))
    return norm / size if size else math.nan


def _checked(algorithms: Any, ranks: int) -> list[tuple[Algorithm, Any]]:
    """Return pairs (algorithm object, accumulation format or None), after checking each against the number of ranks.

    algorithms: names, objects, or pairs with an accumulation format; None for all that support `ranks` ranks. Raises
    ValueError if there is no algorithm, or one does not support `ranks` ranks.
    """
    if algorithms is None:
        chosen: list[Choice] = [
            choice for choice in EVERY if not (choice == "recursive_halving" and ranks & (ranks - 1))
        ]
        if ranks % TwoLevel().node(ranks):
            chosen.remove("two_level")
    else:
        several = None if isinstance(algorithms, Algorithm) else as_list(algorithms)
        chosen = [algorithms] if several is None else several
    if not chosen:
        raise ValueError("algorithms must name one or more, such as 'ring'; got none.")
    pairs = []
    for choice in chosen:
        if isinstance(choice, tuple) and len(choice) != 2:
            raise ValueError(f"an algorithm must be a name, an object or a pair with a format; got {shown(choice)}.")
        algorithm, accumulate = choice if isinstance(choice, tuple) else (choice, None)
        pairs.append((algorithm_of(algorithm), accumulate))
        pairs[-1][0].check(ranks)
    return pairs
