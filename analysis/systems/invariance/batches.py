"""`fp.analysis.batch_invariance`: tests whether the result for one row of a batch depends on the other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.analysis.systems.invariance.differences import relative_difference
from fpsim.analysis.systems.invariance.results import BatchInvariance, BatchRow
from fpsim.arrays import Array, as_array, float_array, is_torch, without_gradient, words
from fpsim.display.optional import load
from fpsim.errors import is_integer, require_integer, shown

LARGEST_BATCH = 1 << 31  # rows
SIZES = (1, 2, 8, 31, 32, 33, 128, 1024, 1025)


def batch_invariance(
    fn: Callable[[Any], Any], x: npt.ArrayLike, *, batches: Sequence[int] = SIZES, rows: int = 2, seed: int = 0,
    bisect: bool = True,
) -> BatchInvariance:  # fmt: skip
    """Test whether the result for a row of a batch depends on the number, order and values of the other rows.

    Args:
      fn: a function of a batch (m, ...) that returns results (m, ...), floats: a `fp.analysis.ScheduledProduct`, a
        product of any library, or a model. It gets torch tensors if x is one.
      x: rows (count, ...) of floats, from which batches are made. The first `rows` rows are tested, one at a time; the
        others fill the batch, repeated if it needs more.
      batches: batch sizes to compare, in rows; the smallest is the reference.
      rows: number of rows to test.
      seed: seed of the order of the rows that fill the batch.
      bisect: whether to search for the exact size at which bits change between two of `batches`, assuming that they
        change only once there.

    Returns:
      A BatchInvariance, one row for each batch size.

    Raises:
      ValueError: sizes are not positive integers, x has too few rows, or fn returns another number of rows, no
        elements, or NaN alone.
      TypeError: fn cannot be called, or does not return floats.

    Source: docs/batch-invariance.md.

    Example:
      >>> import fpsim as fp
      >>> draws = np.random.default_rng(0)
      >>> w, x = draws.standard_normal((1024, 32)), draws.standard_normal((64, 1024))
      >>> rule = lambda m, n, k: fp.schedules.cublas(split_k=4) if m <= 20 else None
      >>> report = fp.analysis.batch_invariance(fp.analysis.ScheduledProduct(w, "hopper_bf16_f32", rule), x)
      >>> report.causes, report.thresholds
      (('size',), (21,))
      >>> fixed = fp.analysis.ScheduledProduct(w, "hopper_bf16_f32", fp.schedules.cublas(split_k=4))
      >>> fp.analysis.batch_invariance(fixed, x).invariant
      True
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function of a batch; got {shown(fn)}.")
    sizes = _checked_sizes(batches)
    require_integer("rows", rows, 1)
    require_integer("seed", seed, 0)
    runner, describe = _Runner(fn, x, rows, seed), getattr(fn, "describe", None)
    references = [runner.result(row, sizes[0], 0) for row in range(rows)]
    if all(bool((result != result).all()) for result in references):
        raise ValueError("fn must return numbers, whose bits can be compared; got NaN or nothing for all tested rows.")
    compared = []
    last, group, thresholds = references, 0, []
    for number, size in enumerate(sizes):
        results = [runner.result(row, size, 0) for row in range(rows)]
        if number and not _same(results, last):  # a function that varies between calls changes at any size
            group += 1
            thresholds.append(runner.threshold(sizes[number - 1], size, last) if bisect else size)
            last = results
        moved = [
            _differing(runner.result(row, size, place), results[row])
            for row in range(rows)
            for place in {size // 2, size - 1} - {0}
        ]
        beside = [_differing(runner.result(row, size, 0, other=True), results[row]) for row in range(rows)]
        again = [_differing(runner.result(row, size, 0), results[row]) for row in range(rows)]
        compared.append(
            BatchRow(
                batch=size,
                differing=float(np.mean([_differing(a, b) for a, b in zip(results, references, strict=True)])),
                relative=_relative(results, references),
                by_position=max(moved, default=0.0),
                by_neighbours=max(beside) if size > 1 else 0.0,
                by_repetition=max(again),
                group=group,
                description=str(describe(size)) if callable(describe) else "",
            )
        )
    return BatchInvariance(tuple(compared), tuple(thresholds), sum(result.size for result in references))


class _Runner:
    """A helper that makes batches from x, calls the tested function, and returns the results for single rows.

    Args:
      fn: the tested function of a batch (m, ...).
      x: rows of floats; the first `rows` are tested, the others fill batches.
      rows: number of rows to test.
      seed: seed of the two random orders of the rows that fill batches: of the rows that are not tested, and of all.
    """

    def __init__(self, fn: Callable[[Any], Any], x: Any, rows: int, seed: int) -> None:
        self._fn, self._tensors = fn, is_torch(x)
        self._x = without_gradient(x) if self._tensors else float_array(x)[0]
        if len(self._x.shape) < 1 or len(self._x) < rows + 1:
            raise ValueError(
                f"x must have the {rows} tested rows and at least one other row; got shape {tuple(self._x.shape)}."
            )
        self._rows = rows
        draws = np.random.default_rng(seed)
        fill = draws.permutation(np.arange(rows, len(self._x)))
        other = draws.permutation(len(self._x))  # of all rows, as a single row to fill batches has no replacement
        self._orders = [fill, np.roll(other, -1) if other[0] == fill[0] else other]

    def result(self, row: int, size: int, place: int, other: bool = False) -> Array:
        """Put row `row` of x at index `place` of a batch of `size` rows, and return fn's result for this row.

        Rows of x that are not tested fill the batch in a random order. other: whether all rows of x fill it instead, in
        a random order that begins with another row.
        """
        indices = np.insert(np.resize(self._orders[int(other)], size - 1), place, row)
        batch = self._x[load("torch", "batches of tensors").from_numpy(indices) if self._tensors else indices]
        results, _ = float_array(as_array(without_gradient(self._fn(batch))), "the result")
        if not results.shape or len(results) != size:
            raise ValueError(f"fn must return a result for each of {size} rows; got shape {results.shape}.")
        return np.array(results[place])

    def threshold(self, low: int, high: int, results: list[Array]) -> int:
        """Find by bisection a batch size in low + 1 .. high at which bits begin to differ from `results`.

        results: fn's results at size `low`, one array for each tested row; at `high` bits are known to differ.
        """
        while high - low > 1:
            middle = (low + high) // 2
            if _same([self.result(row, middle, 0) for row in range(self._rows)], results):
                low = middle
            else:
                high = middle
        return high


def _checked_sizes(batches: Any) -> list[int]:
    """Return the batch sizes in `batches`, one integer or several, in ascending order without repetitions.

    Raises ValueError unless all are integers in 1 .. 2**31.
    """
    sizes = [batches] if is_integer(batches) else list(batches) if isinstance(batches, (list, tuple, range)) else []
    if not sizes or any(not is_integer(size) or not 1 <= size <= LARGEST_BATCH for size in sizes):
        raise ValueError(f"batches must be integers in 1 .. 2**31, the numbers of rows; got {shown(batches)}.")
    return sorted({int(size) for size in sizes})


def _differing(a: Array, b: Array) -> float:
    """Return the share of elements of a and b whose bits differ; 1 if shapes or dtypes differ. NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return 1.0
    differ = words(np.ascontiguousarray(a)) != words(np.ascontiguousarray(b))
    both_nan = (a != a) & (b != b)
    return float((differ & ~both_nan).mean()) if a.size else 0.0


def _same(a: list[Array], b: list[Array]) -> bool:
    """Return whether two lists of arrays have the same bits; NaN equals NaN."""
    return all(_differing(x, y) == 0 for x, y in zip(a, b, strict=True))


def _relative(a: list[Array], b: list[Array]) -> float:
    """Return the relative difference of two lists of arrays from the second, as `relative_difference` defines it."""
    x, y = (np.concatenate([one.astype(np.float64).reshape(-1) for one in many]) for many in (a, b))
    return relative_difference(x, y)
