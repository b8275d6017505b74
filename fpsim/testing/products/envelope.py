"""Error bounds for the results of kernels that promise accuracy but no bits, and the bounds' derivation as text."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fpsim.analysis.measures.drift.bounds import (
    SLACK,
    Chance,
    accumulator_bounds,
    matrix_unit_bounds,
    smallest_step,
    unit_roundoff,
)
from fpsim.analysis.measures.drift.terms import Terms
from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.formats.named import FP64
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.schedule import FLAT
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, Pairwise
from fpsim.testing.products.changes import flushed
from fpsim.testing.products.promise import Adding, KernelInputs, Promise, cast, operand_values, values_of

NEAREST = Rounding.NEAREST_EVEN
OVERFLOWS = ("nonfinite", "saturate")  # of casts of results that are Inf
MOST = 1 << 22  # products that are computed at once


class Envelope(NamedTuple):
    """Exact sums of a product, and bounds on the distance of a kernel's results from them.

    Attributes:
      exact: the exact sums, rounded to float64, (M, N).
      bound: the largest absolute distance allowed; NaN for an element without a bound.
      special: NaN, Inf or -Inf where the sum must be that value, 0 elsewhere.
      casts: `special` cast to the result's format, with and without saturation; a result may be either.
    """

    exact: Array
    bound: Array
    special: Array
    casts: tuple[Array, Array]


def refuse_envelope(promise: Promise) -> None:
    """Raise a ValueError if no error bound is known for a promise, the arithmetic that a kernel claims."""
    if not isinstance(promise.adding, Adding):
        raise ValueError("envelope=True needs a unit or an accumulator, whose error bound is known; got a model.")
    if isinstance(promise.adding.how, Accumulator) and promise.adding.schedule is not None:
        raise ValueError(f"envelope=True takes an accumulator without a schedule; got {promise.adding.schedule}.")
    if promise.scaled or promise.bias:
        raise ValueError("envelope=True takes sums without scales and bias; got some. Leave them out of fn.")
    if FP64 in (promise.a.fmt, promise.b.fmt):
        raise ValueError("envelope=True needs operands of up to 32 bits, whose products float64 holds; got FP64.")
    rounding = promise.adding.how.rounding if isinstance(promise.adding.how, Accumulator) else NEAREST
    if rounding is Rounding.STOCHASTIC:
        raise ValueError(f"envelope=True needs a deterministic accumulator; got {shown(promise.adding.how)}.")


class SubnormalFlush(NamedTuple):
    """The subnormals that a kernel may replace by zeros.

    Attributes:
      words: clause for reports, such as "takes subnormal sums as zeros".
      sides: operands whose subnormals it replaces: "a", "b", "ab" or "".
      sums, results: whether it replaces subnormal sums, and subnormal results.
    """

    words: str
    sides: str = ""
    sums: bool = False
    results: bool = False


INPUTS = {"ab": "both operands", "a": "a", "b": "b"}
FLUSHES = (
    *(SubnormalFlush(f"takes subnormals of {words} as zeros", sides) for sides, words in INPUTS.items()),
    SubnormalFlush("gives zeros for subnormal results", results=True),
    SubnormalFlush("takes subnormal sums as zeros", sums=True),
    *(SubnormalFlush(f"takes subnormals of {words} and subnormal sums as zeros", sides, sums=True, results=True)
      for sides, words in INPUTS.items()),
)  # fmt: skip


def within(promise: Promise, x: KernelInputs, got: Array, flush: SubnormalFlush) -> bool:
    """Return whether all results are within the promise's error bounds, adapted to a kernel that flushes subnormals.

    The exact sums are those of the operands after the flush. If sums are flushed, bounds are enlarged by two smallest
    normal values of the sums' format for each term. If results are flushed, a result of 0 is allowed wherever a result
    that rounds to a subnormal is.

    Args:
      promise: the arithmetic that the kernel claims, which has an error bound.
      x: the operands.
      got: the results for them, float64 values (M, N).
      flush: which of operands, sums and results are flushed.
    """
    sides = zip("ab", (x.a, x.b), (promise.a, promise.b), strict=True)
    a, b = (
        operand.passed(flushed(operand_values(array, operand), operand.fmt)) if name in flush.sides else array
        for name, array, operand in sides
    )
    of = envelope_of(promise, replace(x, a=a, b=b))
    assert isinstance(promise.adding, Adding)
    # a product and a sum for each term, each of which loses less than a smallest normal number
    lost = 2 * x.shape[2] * promise.adding.own_format.smallest_normal if flush.sums else 0.0
    far = outside(got, of._replace(bound=of.bound + lost))
    if flush.results:
        far &= (got != 0) | (np.abs(of.exact) - of.bound - lost >= promise.out.smallest_normal)
    return not far.any()


def envelope_of(promise: Promise, x: KernelInputs) -> Envelope:
    """Return the exact sums of the product of x.a and x.b, and bounds of a kernel's errors.

    promise: the arithmetic that the kernel claims. A bound is the deterministic error bound of its accumulation,
    enlarged by the error of rounding to the result's format if that is not the format of the sums. It is NaN if a sum
    may exceed half of the largest value of either format. Infinite and NaN operands count as 0 in the exact sums.
    """
    a, b = operand_values(x.a, promise.a), operand_values(x.b, promise.b)
    rows = max(MOST // (b.size or 1), 1)
    parts = [_of_rows(promise, a[start : start + rows], b) for start in range(0, len(a), rows)]
    exact, bound, special = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    casts = (values_of(cast(special, FP64, promise.out, overflow=word), promise.out) for word in OVERFLOWS)
    return Envelope(exact, bound, special, (next(casts), next(casts)))


def _of_rows(promise: Promise, a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Return the arrays `exact`, `bound` and `special` of an `Envelope`, for float64 operands a (M, K) and b (K, N).

    promise: the arithmetic that a kernel claims.
    """
    adding = promise.adding
    assert isinstance(adding, Adding)
    (m, k), n = a.shape, b.shape[1]
    special, infinite = _specials(a, b)
    if isinstance(adding.how, Accumulator) and adding.how.overflow == "saturate":
        special = np.where(infinite, 0.0, special)  # an Inf becomes a number, to which more is added
    a, b = (np.where(np.isfinite(v), v, 0.0) for v in (a, b))
    rows, columns = np.repeat(a, n, axis=0), np.tile(b.T, (m, 1))
    terms = Terms(rows.astype(np.float32), columns.astype(np.float32), rows * columns)
    chance = Chance(0.99)
    exact = np.array([math.fsum(row) for row in terms.products.tolist()])
    with np.errstate(all="ignore"):
        if isinstance(adding.how, MatrixUnit):
            bounds = matrix_unit_bounds(adding.how, adding.schedule or FLAT, terms, k, chance, False)
        else:
            bounds = accumulator_bounds(adding.how, terms, k, chance, exact)
        bound = bounds.deterministic
        if promise.out != adding.own_format:
            step = smallest_step(promise.out, NEAREST, "keep")
            bound = (bound + unit_roundoff(promise.out, NEAREST) * (np.abs(exact) + bound) + step) * SLACK
        largest = min(promise.out.max, adding.own_format.max) / 2
        bound = np.where(terms.magnitude_sums(k) + bound < largest, bound, np.nan)
    bound = np.where(infinite & (special == 0), np.nan, bound.reshape(m, n))
    # finite terms that may overflow to the other Inf make NaN of an Inf
    special = np.where(np.isinf(special) & np.isnan(bound), 0.0, special)
    return exact.reshape(m, n), bound, special


def _specials(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (float64 (M, N): NaN, Inf or -Inf where terms force this result, 0 elsewhere; where a term is Inf).

    a, b: the operands' float64 values, (M, K) and (K, N). A result with terms Inf and -Inf must be NaN.
    """
    with np.errstate(all="ignore"):
        products = a[:, :, None] * b[None]
    nan = np.isnan(products).any(axis=1)
    up, down = (products == np.inf).any(axis=1), (products == -np.inf).any(axis=1)
    special = np.where(nan | (up & down), np.nan, np.where(up, np.inf, np.where(down, -np.inf, 0.0)))
    return special, (up | down) & ~nan


def outside(got: Array, of: Envelope) -> Array:
    """Return a bool mask of the results `got`, float64 values (M, N), that are outside their bounds.

    An element whose sum must be NaN or Inf is outside if it is no cast of that value; an element without a bound never
    is. of: the bounds.
    """
    must = np.isnan(of.special) | np.isinf(of.special)
    with np.errstate(all="ignore"):
        far = ~(np.abs(got - of.exact) <= of.bound)
        wrong = np.all([(got != right) & ~(np.isnan(got) & np.isnan(right)) for right in of.casts], axis=0)
    return np.asarray(np.where(must, wrong, far & ~np.isnan(of.bound)))


def shares(got: Array, of: Envelope) -> Array:
    """Return the absolute error of each of the results `got`, float64 values (M, N), divided by its bound.

    It is NaN if the result is not finite, must be NaN or Inf, or has no bound above 0. of: the bounds.
    """
    plain = (of.special == 0) & ~np.isnan(of.bound) & np.isfinite(got)
    with np.errstate(all="ignore"):
        return np.where(plain & (of.bound > 0), np.abs(got - of.exact) / of.bound, np.nan)


def derivation(promise: Promise) -> str:
    """Return the derivation of a promise's error bounds as text, such as "one rounding to FP32 of the exact sum"."""
    adding = promise.adding
    assert isinstance(adding, Adding)
    how, out = adding.how, promise.out
    if isinstance(how, MatrixUnit):
        text = (
            f"each step of {how.name} loses at most one place of its grid a product, its result is rounded once, and "
            f"errors return with every later step; summed over the steps of {adding.schedule or 'one chain'} "
            "(docs/drift.md)"
        )
    elif isinstance(how, Exact):
        text = f"one rounding to {how.fmt} of the exact sum"
    else:
        unit = unit_roundoff(how.fmt, how.rounding)
        path = "1 + ceil(log2 K)" if isinstance(how, Pairwise) else "K + 1"
        order = "" if isinstance(how, (Pairwise, Chunked)) else ", in whatever order"
        text = (
            f"at most n = {path} roundings to {how.fmt} on the way of a term{order}: "
            f"((1 + u)^n - 1) * sum |a b|, u = 2^{int(math.log2(unit))}, plus a smallest subnormal each"
        )
    if out != adding.own_format:
        text += f"; then one rounding to {out}, u = 2^{int(math.log2(unit_roundoff(out, NEAREST)))}"
    return f"|result - exact sum| <= B: {text}."
