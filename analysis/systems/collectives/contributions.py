"""Contributions of ranks, read from an array, a function or an iterator one rank at a time, as codes of a format."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fpsim.analysis.systems.collectives.rounding import CAST, Adder
from fpsim.arrays import Array, float_array, format_of, is_torch, without_gradient, words
from fpsim.errors import require_integer, shown

IN_MEMORY = 1 << 28  # bytes: an iterator's arrays stay in memory up to this size, then move to a temporary file
MOST_RANKS = 1 << 20
ContributionsLike = npt.ArrayLike | Iterable[npt.ArrayLike] | Callable[[int], npt.ArrayLike]  # argument of `Source`


class CodeRows(Protocol):
    """The codes that a reduction adds, unsigned integers: `count` rows of `size` codes.

    A row is one rank's contribution, or one node's sum.
    """

    count: int
    size: int

    def row(self, index: int, start: int, stop: int) -> Array:
        """Return row `index`'s codes of the elements start .. stop - 1, which the caller must not change."""
        ...


class Source:
    """The unrounded contributions of all ranks to an all-reduce, each read when it is needed.

    Args:
      x: an array (ranks, n), a sequence or an iterator of arrays (n,), or a function of the rank that returns an array
        (n,).
      ranks: number of ranks, required if x is a function; otherwise None, or the number of contributions in x.

    Raises:
      ValueError: there are no ranks or no elements, contributions have different sizes, or their number is not `ranks`.
      TypeError: contributions do not hold floats, or x is of another type.
    """

    def __init__(self, x: Any, ranks: int | None) -> None:
        if ranks is not None:
            require_integer("ranks", ranks, 1)
        self._kept: OrderedDict[int, Array] = OrderedDict()
        self.keep = 1  # number of a function's arrays that are kept in memory for later reads
        self._read: Callable[[int], Any]
        self.is_function = False
        x = without_gradient(x) if is_torch(x) else x
        if callable(x) and not hasattr(x, "shape"):
            if ranks is None:
                raise ValueError("ranks must be the number of contributions of a function; got None. Pass ranks=8.")
            self.count, self._read, self.is_function = int(ranks), x, True
        elif isinstance(x, (list, tuple)) and len(x) > 0 and hasattr(x[0], "shape"):
            self.count, self._read = len(x), x.__getitem__
        elif isinstance(x, Mapping):
            raise TypeError(
                f"x must be an array, a sequence, an iterator or a function of the rank; got {shown(x)}. "
                "Pass its values."
            )
        elif isinstance(x, Iterable) and not isinstance(x, (list, tuple, str)) and not hasattr(x, "shape"):
            rows = _kept_rows(iter(x))
            self.count, self._read = len(rows), rows.__getitem__
        else:
            array, _ = float_array(x)
            if array.ndim != 2:
                raise ValueError(
                    f"x must be of shape (ranks, n), a row for each rank; got {array.shape}. Reshape each rank's "
                    "gradient to one axis."
                )
            self.count, self._read = len(array), array.__getitem__
        if ranks is not None and self.count != ranks:
            raise ValueError(f"x must have a row for each of {ranks} ranks; got {self.count}. Leave ranks out.")
        if not 1 <= self.count <= MOST_RANKS:
            raise ValueError(f"x must have 1 to {MOST_RANKS:,} ranks; got {self.count:,}.")
        self.size: int = -1
        self.size = self.values(0).size
        if not self.size:
            raise ValueError("contributions must have one or more elements; got none.")

    def values(self, rank: int) -> Array:
        """Return a rank's contribution, (size,) floats in the dtype that the caller passed.

        Raises ValueError for another shape than (size,), TypeError if it does not hold floats.
        """
        if rank in self._kept:
            self._kept.move_to_end(rank)
            return self._kept[rank]
        array, _ = float_array(without_gradient(self._read(rank)), "a contribution")
        if array.ndim != 1:
            raise ValueError(
                f"a contribution must be of shape (n,); got {array.shape} for rank {rank}. Flatten it: .reshape(-1)."
            )
        if self.size >= 0 and array.size != self.size:
            raise ValueError(
                f"contributions must have one size; got {self.size} elements for rank 0 and {array.size} for rank "
                f"{rank}."
            )
        if self.is_function:
            array = array.copy()  # a function may fill one array again and again
            self._kept[rank] = array
            while len(self._kept) > self.keep:
                self._kept.popitem(last=False)
        return array


def _spilled(rows: Iterable[Array], like: Array) -> Array:
    """Write arrays of the shape and dtype of `like` to a temporary file; return them as a memory-mapped array of rows.

    The file's disk space is freed with the returned array.
    """
    with tempfile.TemporaryFile(prefix="fpsim-ranks-") as file:
        count = 0
        for row in rows:
            file.write(words(np.ascontiguousarray(row)).data)
            count += 1
        file.flush()
        plain = np.dtype(f"u{like.dtype.itemsize}")
        return np.memmap(file, plain, "r", shape=(count, like.size)).view(like.dtype)


def _kept_rows(rows: Iterator[Any]) -> Sequence[Any] | Array:
    """Store the arrays that the iterator `rows` yields, and return them as a sequence.

    They are stored in memory, or in a temporary file if they have more than IN_MEMORY bytes together.

    Raises ValueError unless all arrays have one shape and dtype, TypeError unless they hold floats.
    """
    first, _ = float_array(without_gradient(next(rows, np.zeros(0))), "a contribution")

    def checked() -> Iterator[Array]:
        for number, row in enumerate(rows, 1):
            array, _ = float_array(without_gradient(row), "a contribution")
            if array.shape != first.shape or array.dtype != first.dtype:
                raise ValueError(
                    f"contributions of an iterator must have one shape and dtype; got {first.dtype} of shape "
                    f"{first.shape} for rank 0, {array.dtype} of shape {array.shape} for rank {number}."
                )
            yield array

    kept, total, others = [first.copy()], first.nbytes, checked()
    for row in others:
        kept.append(row.copy())  # an iterator may fill one array again and again
        total += row.nbytes
        if total > IN_MEMORY:
            return _spilled(chain(kept, others), first)
    return kept


class Contributions:
    """The ranks' contributions as codes of the format of messages, already scaled if the mean is taken before the sum.

    Args:
      source: the unrounded contributions.
      adder: the format and rounding of the codes.
      average: "multiply_before" or "divide_before" scale contributions by 1 / ranks. None (a sum) and "divide_after"
        leave them unscaled.
    """

    def __init__(self, source: Source, adder: Adder, average: str | None) -> None:
        self._source, self._adder, self._average = source, adder, average
        self._encoded: tuple[int, Array] | None = None
        self.count, self.size = source.count, source.size

    def row(self, index: int, start: int, stop: int) -> Array:
        """Return rank `index`'s codes of the elements start .. stop - 1."""
        values, adder = self._source.values(index), self._adder
        exact = format_of(values.dtype) == adder.fmt
        before = self._average if self._average in ("multiply_before", "divide_before") else None
        if exact and before is None:
            return words(np.ascontiguousarray(values[start:stop]))
        if not adder.is_stochastic:
            return self._prepared(index, values[start:stop], exact, before)
        if self._encoded is None or self._encoded[0] != index:  # random bits depend on the index in the whole buffer
            self._encoded = index, self._prepared(index, values, exact, before)
        return self._encoded[1][start:stop]

    def _prepared(self, rank: int, values: Array, exact: bool, before: str | None) -> Array:
        """Return a rank's contribution `values` as codes, scaled for a mean unless `before` is None.

        exact: whether values have the format's dtype already, so that no rounding is needed. before: how to scale,
        "multiply_before" or "divide_before".
        """
        adder = self._adder
        values = np.ascontiguousarray(values)
        codes = words(values) if exact else adder.rounded(values, rank, CAST)
        return codes if before is None else adder.scaled(codes, before, self.count, rank)


class Permuted:
    """Contributions in a different order of ranks: row i is row `order[i]` of `rows`."""

    def __init__(self, rows: CodeRows, order: Sequence[int]) -> None:
        self._rows, self._order = rows, [int(i) for i in order]
        self.count, self.size = rows.count, rows.size

    def row(self, index: int, start: int, stop: int) -> Array:
        """Return the codes of the elements start .. stop - 1 of row `order[index]` of `rows`."""
        return self._rows.row(self._order[index], start, stop)
