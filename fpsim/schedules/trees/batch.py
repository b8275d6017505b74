"""Reports on whether a row's bits depend on the number of rows and columns, and from which K on split-K matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from fpsim.errors import is_integer, shown
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.arguments import positive
from fpsim.schedules.limits import remarks
from fpsim.schedules.schedule import Lanes, Schedule, Slicing
from fpsim.schedules.trees.tree import LARGEST_K, Tree, tree, unit_of

Heuristic = Callable[[int, int, int], Schedule]
POWERS = tuple(1 << i for i in range(13))  # 1 to 4096
FURTHEST = 1 << 14  # terms of K up to which the first effect of split-K is searched, or further where K is larger
MOST_TERMS = 1 << 20  # terms of K up to which a function is called for every K, which takes minutes


@dataclass(frozen=True)
class BatchGroup:
    """A group of batch sizes (numbers of rows) whose products have the same tree of additions.

    Attributes:
      m: the numbers of rows, in ascending order.
      n: the number of columns of all these products.
      schedule: the schedule for the first number in `m`.
      tree: the tree of additions, which is the same for every number in `m`.
    """

    m: tuple[int, ...]
    n: int
    schedule: Schedule
    tree: Tree = field(repr=False)

    def __str__(self) -> str:
        rows = f"M = {self.m[0]}" if len(self.m) == 1 else f"M = {self.m[0]} to {self.m[-1]}"
        return f"{rows}: {self.schedule}"


@dataclass(frozen=True)
class BatchReport:
    """A report on whether the bits of a row depend on the shape of the product; `str()` gives sentences.

    It compares trees of additions: the orders in which the K products of one element of the result are added.

    Attributes:
      k: number of terms.
      m, n: the numbers of rows and of columns that were compared, in ascending order.
      on_m: True if the tree changes with the number of rows, for some number of columns.
      on_n: True if the tree changes with the number of columns, for some number of rows.
      groups: the numbers of rows in `m`, divided into ranges within which the tree stays the same, with the largest
        number of columns; each range is a BatchGroup.
      split_matters_from: the smallest K at which the library's split-K (adding slices of K separately) gives another
        tree than adding all of K in one slice. None if there is no such K among those that were tried.
      remarks: sentences on the library's choice of kernels.
    """

    k: int
    m: tuple[int, ...]
    n: tuple[int, ...]
    on_m: bool
    on_n: bool
    groups: tuple[BatchGroup, ...]
    split_matters_from: int | None
    remarks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The report as sentences, one per line."""
        lines = []
        for name, depends, sizes in (("M", self.on_m, self.m), ("N", self.on_n, self.n)):
            verb = "depend" if depends else "do not depend"
            listed = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 3 else ", ".join(map(str, sizes))
            lines.append(f"The bits of a row {verb} on {name} ({listed}), for K = {self.k}.")
        if len(self.groups) > 1:
            lines.append(f"With N = {self.groups[0].n}: {'; '.join(map(str, self.groups))}.")
        if self.split_matters_from is None:
            lines.append("K is never split, or to no effect.")
        else:
            lines.append(f"Split-K changes the sum for the first time at K = {self.split_matters_from}.")
        return "\n".join([*lines, *self.remarks])

    def __str__(self) -> str:
        return self.text


def depends_on_batch(
    schedule: Schedule | Heuristic, *, k: int, m: int | Sequence[int] = POWERS, n: int | Sequence[int] = POWERS,
    accumulate: MatrixUnit | str | None = None,
) -> BatchReport:  # fmt: skip
    """Report whether the bits of a row depend on the number of rows and columns, by comparing trees of additions.

    The tree of one schedule depends on K alone, with the exceptions that `.remarks` of the result lists. But libraries
    choose a schedule by the shape: pass that choice as a function to see its effect.

    Args:
      schedule: a schedule, or a function (m, n, k) -> schedule such as a library's heuristic.
      k: number of terms.
      m, n: numbers of rows and columns to compare.
      accumulate: the matrix unit, as for `fp.schedules.tree`.

    Returns:
      A BatchReport; print it.

    Raises:
      ValueError: numbers that are not positive, or a k above 2**20 for a function.
      TypeError: `schedule` is neither a schedule nor a function, or the function returns something else.

    Source: docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> s = fp.schedules
      >>> report = s.depends_on_batch(lambda m, n, k: s.cublas(split_k=4 if m <= 64 else 1), k=4096, n=4096)
      >>> report.on_m, report.split_matters_from
      (True, 65)
      >>> [str(group) for group in report.groups]
      ["M = 1 to 64: cublas('sm_90', split_k=4)", "M = 128 to 4096: cublas('sm_90')"]
      >>> s.depends_on_batch(s.cublas(split_k=4), k=4096).on_m
      False
    """
    rows, columns = _sizes(m, "m"), _sizes(n, "n")
    terms = positive(k, "k", LARGEST_K)
    choose = _Choice(schedule, accumulate)
    if terms > MOST_TERMS and not choose.is_fixed:
        raise ValueError(f"k must be at most {MOST_TERMS} for a function, which is asked for every K up to k; got {k}.")
    trees = {(i, j): choose.tree(choose(i, j, terms), j, terms) for i in rows for j in columns}
    on_m = any(trees[i, j] != trees[rows[0], j] for i in rows for j in columns)
    on_n = any(trees[i, j] != trees[i, columns[0]] for i in rows for j in columns)
    wide = columns[-1]
    groups = tuple(
        BatchGroup(tuple(sizes), wide, choose(sizes[0], wide, terms), of)
        for of, group in groupby(rows, key=lambda i: trees[i, wide])
        if (sizes := list(group))
    )
    split = choose.split_matters_from(rows, columns, terms)
    return BatchReport(terms, rows, columns, on_m, on_n, groups, split, tuple(_remarks(choose, rows, columns, terms)))


class _Choice:
    """A function (m, n, k) -> schedule, made of a schedule or such a function, with a cache of trees of additions."""

    def __init__(self, schedule: Schedule | Heuristic, accumulate: MatrixUnit | str | None) -> None:
        if not isinstance(schedule, Schedule) and not callable(schedule):
            raise TypeError(f"schedule must be a schedule or a function (m, n, k) -> schedule; got {shown(schedule)}.")
        self.of, self.accumulate = schedule, accumulate
        self.trees: dict[tuple[Schedule, bool, int], Tree] = {}

    @property
    def is_fixed(self) -> bool:
        """True if one schedule is used for all shapes."""
        return isinstance(self.of, Schedule)

    def __call__(self, m: int, n: int, k: int) -> Schedule:
        schedule = self.of if isinstance(self.of, Schedule) else self.of(m, n, k)
        if not isinstance(schedule, Schedule):
            raise TypeError(f"the function must return a schedule for {m}, {n}, {k}; got {shown(schedule)}.")
        return schedule

    def tree(self, schedule: Schedule, n: int, k: int) -> Tree:
        """Return the tree of a schedule for n columns and k terms, from the cache if it was built before."""
        key = (schedule, n == 1, k)
        if key not in self.trees:
            self.trees[key] = tree(schedule, k, n=n, accumulate=self.accumulate)
        return self.trees[key]

    def split_matters_from(self, rows: Sequence[int], columns: Sequence[int], k: int) -> int | None:
        """Return the smallest K at which cutting K into slices changes the order of additions; None if there is none.

        rows, columns: numbers of rows and of columns of the products; of the columns, only the first and the last
        number are tried. k: the largest K to try. If one schedule is used for all shapes, only the last number of
        columns is tried, and every K up to at least FURTHEST (16384). If its slices have listed lengths, which add up
        to k, only k is tried.
        """
        shapes, sizes = [(i, j) for i in rows for j in {columns[0], columns[-1]}], range(1, k + 1)
        if isinstance(self.of, Schedule):
            if not _is_split(self.of):
                return None
            shapes = [(rows[0], columns[-1])]
            sizes = range(k, k + 1) if self.of.slicing.rule == "listed" else range(1, max(k, FURTHEST) + 1)
        for terms in sizes:
            chosen = {(self(i, j, terms), j == 1): j for i, j in shapes}
            for (schedule, _), j in chosen.items():
                if _is_split(schedule) and self.tree(schedule, j, terms) != self.tree(_in_one(schedule), j, terms):
                    return terms
            self.trees.clear()
        return None


def _is_split(schedule: Schedule) -> bool:
    """Return whether a schedule divides K into slices."""
    return schedule.slicing.count > 1 or (isinstance(schedule.sums, Lanes) and schedule.sums.blocks > 1)


def _in_one(schedule: Schedule) -> Schedule:
    """Return a copy of the schedule with K in one slice, otherwise unchanged."""
    sums = schedule.sums
    if isinstance(sums, Lanes) and sums.blocks > 1:
        sums = replace(sums, blocks=1)
    return replace(schedule, sums=sums, slicing=Slicing())


def _sizes(value: int | Sequence[int], name: str) -> tuple[int, ...]:
    """Return the sizes in an argument, an integer or a sequence of them, in ascending order and each once.

    name: the argument's name, for errors.

    Raises:
      ValueError: the value is neither a positive integer nor a non-empty sequence of them.
    """
    values: list[Any] = []
    with suppress(TypeError):  # neither an integer nor several
        values = [value] if is_integer(value) else [*value]  # type: ignore[misc]
    if not values or any(not is_integer(x) or x < 1 for x in values):
        raise ValueError(f"{name} must be a positive integer or several; got {shown(value)}.")
    return tuple(sorted({int(x) for x in values}))


def _remarks(choose: _Choice, rows: Sequence[int], columns: Sequence[int], k: int) -> Iterator[str]:
    """Yield sentences on the kernels that the schedule's library uses for products of the compared shapes.

    choose: the `_Choice` that gives the schedule of each shape. rows, columns: the numbers of rows and of columns that
    are compared. k: number of terms.
    """
    schedules = {choose(i, j, k) for i in rows for j in columns}
    if choose.is_fixed:
        yield "The schedule is fixed here; a library may choose another for another shape."
    if any(isinstance(schedule.sums, Lanes) and schedule.sums.merge == "blocks" for schedule in schedules):
        yield "cuBLAS's dot keeps two chains per thread where N = 1, and one elsewhere."
    if any(schedule.family == "gemv" and schedule.option("option") == 10 for schedule in schedules):
        yield (
            "Option 10 of gemv has its 32 lanes for up to 2048 / 32 outputs per multiprocessor, 8448 on an H100; "
            "beyond, cuBLAS takes fewer lanes with the same fields of the algorithm."
        )
    if any(
        schedule.library == "cuBLAS" and schedule.family not in ("xmma", "block_scaled") for schedule in schedules
    ) and any(unit_of(schedule, choose.accumulate).a.fmt.bits == 16 for schedule in schedules):
        yield (
            "For FP16 and BF16, cuBLAS takes gemv or dot where M = 1 or N = 1, CUTLASS kernels where K or N is no "
            "multiple of 8, gemmSN for few rows and a short K, and nvjet elsewhere; how K is split, only its heuristic "
            "says (docs/schedules.md)."
        )
    i, j = rows[-1], columns[-1]
    yield from remarks(choose(i, j, k), unit_of(choose(i, j, k), choose.accumulate), i, j, k)
