"""The pass over an array: each piece is rounded by every candidate (cast to measure) and measured, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from fpsim.analysis.measures.candidates import Buffers, Candidate
from fpsim.analysis.measures.loops import BLOCK, DESCRIPTION, RoundedPiece, describe_kernel, measure_kernel
from fpsim.analysis.measures.nearest_loops import PLAN, nearest_kernel
from fpsim.analysis.measures.sums import ErrorSums, nothing
from fpsim.arrays import Array
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import rounds_to_nearest
from fpsim.runtime.threads import over_spans

PIECE = 1 << 18  # elements of a piece of a long array: Python's overhead equals the time of 2**16 elements
SHORT = 1 << 16  # elements of a piece of a shorter array, so that every core has work
LONG = 4 * PIECE
BATCH = 16  # pieces that threads measure at the same time; their sums are added in the order of the array
WEIGHT = 4.0  # cost of measuring an element, in casts of an element


def float_pieces(x: Array) -> Iterator[Array]:
    """Yield the elements of x in C order as contiguous 1-d arrays, float64 if x is float64, else float32 (exact)."""
    size = PIECE if x.size >= LONG else SHORT
    flat = x.reshape(-1) if x.flags.c_contiguous else x.flat  # a flatiter copies one slice at a time
    for start in range(0, x.size, size):
        yield as_floats(flat[start : start + size])


def as_floats(x: Array) -> Array:
    """Return x as a contiguous array, float64 if x is float64, else float32; values are exact."""
    kind = np.float64 if x.dtype.newbyteorder("=") == np.float64 else np.float32
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return np.ascontiguousarray(x).astype(kind, copy=False)


def sums_of_array(x: Array, candidates: Sequence[Candidate]) -> list[ErrorSums]:
    """Return for each candidate, a cast to measure, the sums of its rounding errors over a whole array."""
    return sums_of_pieces(float_pieces(x), candidates)


def sums_of_pieces(pieces: Iterator[Array], candidates: Sequence[Candidate], first: int = 0) -> list[ErrorSums]:
    """Return for each candidate, a cast to measure, the sums of its errors over consecutive 1-d pieces of an array.

    first: flat index of the first piece's first element in the array.
    """
    total: ErrorSums | None = None
    batch: list[Array] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) == BATCH:
            total = _merged(total, _batch_sums(batch, first, candidates))
            first += sum(part.size for part in batch)
            batch = []
    if batch or total is None:
        total = _merged(total, _batch_sums(batch, first, candidates) if batch else nothing((len(candidates),)))
    return [ErrorSums(total.counts[i], total.totals[i], total.maxima[i]) for i in range(len(candidates))]


def _merged(total: ErrorSums | None, more: ErrorSums) -> ErrorSums:
    """Return the ErrorSums of all data: `total`, of the earlier data, merged with `more`; `more` if `total` is None."""
    return more if total is None else total.merge(more)


def whole_array(x: Array, candidate: Candidate) -> RoundedPiece:
    """Return x, flattened, before and after rounding by a cast: (x / scales, values, values * scales, scales or None).

    This allocates four arrays of the size of x, float32 or float64.
    """
    dtype = np.float32 if candidate.facts.width == 32 else np.float64
    exact, values, results, scales = (np.empty(x.size, dtype) for _ in RoundedPiece._fields)
    buffers, first, scaled = Buffers(), 0, False
    for piece in float_pieces(x):
        part = slice(first, first + piece.size)
        rounded = candidate.rounded(piece, first, buffers)
        exact[part], values[part], results[part] = rounded[:3]
        if rounded.scales is not None:
            scales[part], scaled = rounded.scales, True
        first += piece.size
    return RoundedPiece(exact, values, results, scales if scaled else None)


def _batch_sums(pieces: list[Array], first: int, candidates: Sequence[Candidate]) -> ErrorSums:
    """Return the sums of the errors of casts, an ErrorSums (candidates,), over a batch of 1-d pieces.

    A thread measures whole pieces, whose sums are added in the order of the array. first: flat index of the first
    piece's first element.
    """
    piece_sums = nothing((len(pieces), len(candidates)))
    starts = first + np.concatenate([[0], np.cumsum([piece.size for piece in pieces])])

    def work(start: int, stop: int) -> None:
        buffers = Buffers()
        for i in range(start, stop):
            if i > start:  # so that only errors above the largest one so far are computed exactly
                piece_sums.maxima[i] = piece_sums.maxima[i - 1]
            _add_piece(pieces[i], int(starts[i]), candidates, buffers, piece_sums, i)

    over_spans(len(pieces), work, alignment=1, weight=WEIGHT * max(piece.size for piece in pieces))
    return piece_sums.over_first_axis()


def _add_piece(
    x: Array, first: int, candidates: Sequence[Candidate], buffers: Buffers, piece_sums: ErrorSums, row: int
) -> None:
    """Add the errors of each candidate, a cast, on a 1-d piece to row `row` of `piece_sums` (pieces, candidates).

    first: flat index of the piece's first element in the array. buffers: scratch arrays.
    """
    sums = ErrorSums(piece_sums.counts[row, :, None], piece_sums.totals[row, :, None], piece_sums.maxima[row, :, None])
    groups = Groups(x.reshape(1, -1), buffers)
    groups.measure(candidates, sums, lambda candidate: candidate.rounded(x, first, buffers))


class Groups:
    """Groups of elements that are measured in one call: channels or blocks, or one piece of an array.

    Args:
      x: (groups, length), contiguous float32 or float64.
      buffers: work arrays, which are overwritten.

    Attributes:
      reciprocals: 1 / |x|, 0 for x of 0, (groups, length), which all candidates use.
      descriptions: (groups, blocks, 4): largest magnitude, smallest one other than 0, sum of squares and number of
        nonzeros of each block of 2048 elements.
    """

    def __init__(self, x: Array, buffers: Buffers) -> None:
        self.x = x
        self.buffers = buffers
        blocks = -(-x.shape[1] // BLOCK)
        self.reciprocals = buffers.array("reciprocals", x.size, np.float64).reshape(x.shape)
        self.descriptions = np.empty((x.shape[0], blocks, DESCRIPTION))
        with wrapping():
            describe_kernel(x.dtype.itemsize * 8)(x, self.reciprocals, self.descriptions)

    def measure(
        self, candidates: Sequence[Candidate], sums: ErrorSums, rounded: Callable[[Candidate], RoundedPiece]
    ) -> None:
        """Add the errors of candidates, casts to measure, to `sums` (candidates, groups) in place.

        rounded: returns the groups' elements as rounded by a candidate; called only for candidates whose errors
        `nearest_kernel` cannot measure in all blocks.
        """
        done = np.zeros((len(candidates), *self.descriptions.shape[:2]), np.uint8)  # 1 for blocks that are measured
        plans = _plans_of(tuple(candidate.nearest for candidate in candidates))
        if plans is not None and self.x.dtype == np.float32 and rounds_to_nearest():
            with wrapping():
                nearest_kernel()(
                    self.x, self.reciprocals, self.descriptions, plans, done, sums.totals, sums.counts, sums.maxima
                )
        for i, candidate in enumerate(candidates):
            if not done[i].all():
                candidate_sums = ErrorSums(sums.counts[i], sums.totals[i], sums.maxima[i])
                self._measure_rounded(rounded(candidate), candidate, candidate_sums, done[i])

    def _measure_rounded(self, rounded: RoundedPiece, candidate: Candidate, sums: ErrorSums, done: Array) -> None:
        """Add a candidate's errors to `sums` (groups,) in place, except for blocks with a nonzero `done`.

        rounded: the groups' elements before and after the candidate's cast. done: uint8 (groups, blocks).
        """
        width, facts = candidate.facts
        shape = self.x.shape
        x = self.buffers.converted("x", self.x.reshape(-1), np.float32 if width == 32 else np.float64).reshape(shape)
        exact, values, results = (array.reshape(shape) for array in rounded[:3])
        scales = values if rounded.scales is None else rounded.scales.reshape(shape)
        measure = measure_kernel(width, rounded.scales is not None)
        with wrapping():
            measure(
                x, self.reciprocals, self.descriptions, done, RoundedPiece(exact, values, results, scales),
                sums.totals, sums.counts, sums.maxima, facts,
            )  # fmt: skip


@lru_cache(maxsize=64)
def _plans_of(plans: tuple[tuple[float, ...] | None, ...]) -> Array | None:
    """Return the candidates' plans (see `nearest_loops`) as an array (candidates, PLAN); None if all are None.

    A plan of None becomes a row of NaN, with which `nearest_kernel` accepts no block.
    """
    if not any(plans):
        return None
    return np.array([[np.nan] * PLAN if plan is None else plan for plan in plans])
