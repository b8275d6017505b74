"""The function fp.analysis.sweep, which calls a function at every point of a grid and saves the results."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.studies.cells import Cells, SweepCell
from fpsim.analysis.studies.identity import digest, label, name_of, plain, source_of, words
from fpsim.analysis.studies.table import columns_of, frame_of, write_table
from fpsim.analysis.studies.workers import Failure, Progress, run_over
from fpsim.display.optional import Client, DataFrame, load
from fpsim.display.progress import bar
from fpsim.errors import shown
from fpsim.files import path_of

ERROR = "error"  # name of the column with errors
VALUE = "value"  # name of the column with results of a measure that returns a number


def sweep(
    measure: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]],
    *,
    out: str | Path,
    workers: int | None = None,
    client: Client | None = None,
    progress: Progress | None = None,
) -> DataFrame:
    """Call measure(**point) at every point of a grid, and return a table of the results.

    The result at a point is written to `out` at once, and is not computed again. After Ctrl-C, a crash or a killed
    process, the same call continues with the missing points; a larger grid of the same parameters computes only new
    points. For a point at which the measure raises an exception, or ends its worker three times, the column `error` has
    the reason; the next call tries the point again.

    Args:
      measure: called with the parameters of one point by name; returns a number, a text, a dictionary of numbers,
        texts, bools and None, or a report with `to_dict()`. Lambdas and closures may run on several workers.
      grid: parameter -> its values: numbers, texts, None, formats, scalings, accumulators, units, roundings, other
        dataclasses and members of Enums, functions of modules, or tuples of these. No two values may look the same in a
        table. The last parameter changes fastest.
      out: a folder for `cells.jsonl`, the results as they are finished, and `sweep.parquet`, the returned table
        (`sweep.csv` if pyarrow is not installed). A folder belongs to one measure.
      workers: number of processes, each with its share of the cores; None is one per core, 1 computes in this process.
      client: a `dask.distributed.Client`, whose cluster computes instead.
      progress: called with (share of points done, text such as "3 of 10"); None draws a bar if stderr is a terminal and
        rich is installed.
    Returns:
      A pandas DataFrame with a row for each point, in the grid's order, and columns for the parameters (formats by
      name), what the measure returned ("value" for a number; a name that equals a parameter's gets the prefix
      "result_"), and `error`: "" or why there is no result.
    Raises:
      TypeError, ValueError: an argument is invalid, values cannot be told apart in another process, or the folder
        contains results of another measure or other parameters.
      ImportError: pandas, joblib (several workers) or distributed (client=) is not installed.

    Example:
      >>> import tempfile, fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     grid = {"fmt": [fp.E4M3, fp.E5M2], "scale": [1.0, 64.0]}
      ...     rows = fp.analysis.sweep(lambda fmt, scale: fp.analysis.error(x, fmt, scale=scale).sqnr_db, grid,
      ...                              out=folder, workers=1)
      >>> rows[["fmt", "scale", "value"]].round(1)
          fmt  scale  value
      0  E4M3    1.0   31.5
      1  E4M3   64.0   28.4
      2  E5M2    1.0   25.7
      3  E5M2   64.0   25.7
    """
    points = _points(grid)
    _require_measure(measure, points[0].values)
    if path_of(out, "out").suffix in (".parquet", ".csv"):
        raise ValueError(f"out must be a folder; got {shown(str(out))}. The table will be sweep.parquet in it.")
    load("pandas", "a sweep")  # better now than after hours of work
    with Cells(out, name_of(measure), source_of(measure), list(grid)) as cells:
        known = {key for key, cell in cells.finished.items() if cell.result is not None}
        missing = [point for point in points if point.key not in known]
        tasks = [point.values for point in missing]
        results = run_over(tasks, functools.partial(_result_at, measure), workers=workers, client=client)
        with closing(results), bar("sweep") if progress is None else nullcontext(progress) as report:
            for done, (index, result) in enumerate(results, len(points) - len(missing) + 1):
                point, failed = missing[index], isinstance(result, Failure)
                cells.add(SweepCell(point.key, point.words, None if failed else result, result.text if failed else ""))
                report(done / len(points), f"{done:,} of {len(points):,}")
        finished = [(point.labels, cells.finished[point.key]) for point in points]
        rows = [{**labels, **(cell.result or {}), ERROR: cell.error} for labels, cell in finished]
        columns = columns_of(rows, list(grid))
        columns[ERROR] = columns.pop(ERROR)  # moves it to the end
        write_table(cells.folder, "sweep", columns)
    return frame_of(columns)


class _Point(NamedTuple):
    """A point of the grid of a sweep: the measure's arguments and texts for them.

    Attributes:
      values: parameter -> argument.
      words: parameter -> text that identifies the argument in every process.
      labels: parameter -> argument as tables show it.
      key: digest of parameters and texts, by which stored results are found.
    """

    values: dict[str, Any]
    words: dict[str, str]
    labels: dict[str, Any]
    key: str


def _points(grid: Mapping[str, Iterable[Any]]) -> list[_Point]:
    """Return all points of the grid (parameter -> its values), the last parameter changing fastest.

    Raise a TypeError or ValueError if the grid is not a dictionary of lists of values, if a value has no text that
    would identify it in a later run, or if two values look the same in a table.
    """
    if not isinstance(grid, Mapping) or not grid or not all(isinstance(name, str) for name in grid):
        raise TypeError(f"grid must be a dictionary of one or more parameters and their values; got {shown(grid)}.")
    if ERROR in grid:
        raise ValueError("grid must not have a parameter 'error', which is the column of errors. Rename it.")
    axes = [[(name, value, text) for value, text in _axis(name, values)] for name, values in grid.items()]
    points = []
    for point in itertools.product(*axes):
        texts = {name: text for name, _, text in point}
        key = digest(*itertools.chain(*sorted(texts.items())))
        labels = {name: label(value) for name, value, _ in point}
        points.append(_Point({name: value for name, value, _ in point}, texts, labels, key))
    return points


def _axis(name: str, values: Iterable[Any]) -> list[tuple[Any, str]]:
    """Return the values of one parameter as pairs (value, text that identifies it in every process).

    `name`: the parameter's name, for messages. Raise a TypeError or ValueError if `values` is not a list of one or more
    values, if no text identifies a value, or if two values look the same in a table.
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"grid[{name!r}] must be a list of values; got {shown(values)}. Pass one value as [value].")
    plain_values = [plain(value) for value in values]
    if not plain_values:
        raise ValueError(f"grid[{name!r}] must hold at least one value; got none.")
    axis = []
    seen: dict[str, Any] = {}
    for value in plain_values:
        try:
            text = words(value)
        except TypeError as problem:
            raise TypeError(f"grid[{name!r}]: {problem}") from None
        looks = str(label(value))
        if looks in seen:
            raise ValueError(
                f"grid[{name!r}] must hold values that look different; got {shown(seen[looks])} and {shown(value)}, "
                f"which are both {looks!r} in a table. Leave one out, or give it another name."
            )
        seen[looks] = value
        axis.append((value, text))
    return axis


def _require_measure(measure: Any, point: Mapping[str, Any]) -> None:
    """Raise a TypeError unless the measure is callable with the parameters of `point` as keyword arguments."""
    if not callable(measure):
        raise TypeError(f"measure must be a function of the grid's parameters; got {shown(measure)}.")
    try:
        signature = inspect.signature(measure)
    except (TypeError, ValueError):  # some functions in C have no signature
        return
    try:
        signature.bind(**point)
    except TypeError as problem:
        raise TypeError(
            f"measure must take the grid's parameters {', '.join(point)}; got {name_of(measure)}{signature}: {problem}."
        ) from None


def _result_at(measure: Callable[..., Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """Call the measure at one point (parameter -> argument), and return its result as a dictionary, name -> value.

    The measure may return a mapping, an object with a method `to_dict`, or a single value, which gets the name "value".
    Values may be numbers, texts, bools and None, also as scalars of NumPy, ml_dtypes or torch; they become Python's.
    The prefix "result_" is added to a name until it differs from every parameter, from "error", and from the names
    before it. Raise a TypeError for a name that is no text, and for other values.
    """
    result = measure(**point)
    if hasattr(result, "to_dict"):
        result = result.to_dict()
    elif not isinstance(result, Mapping):
        result = {VALUE: result}
    values: dict[str, Any] = {}
    for name, value in result.items():
        if not isinstance(name, str):
            raise TypeError(f"measure must return texts as names; got {shown(name)}.")
        while name in point or name == ERROR or name in values:
            name = f"result_{name}"
        values[name] = _scalar(value)
    return values


def _scalar(value: Any) -> Any:
    """Return a number, text, bool or None as an equal Python int, float, str, bool or None.

    value: also a scalar or 0-d array of NumPy, ml_dtypes or torch. Raise a TypeError for other values, and for a float
    that a Python float cannot represent; a ValueError for an int of more digits than Python writes.
    """
    if value is None:
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    for kind in (bool, int, float, str):  # includes their subclasses; bool comes before int, its base class
        if isinstance(value, kind):
            repr(value)  # raises a ValueError if an integer has more digits than Python writes
            return str.__str__(value) if kind is str else kind(value)  # str(member) of an Enum is its name
    if isinstance(value, np.generic):  # ml_dtypes and long doubles are not floats in Python
        wide = float(value)
        if wide == value or wide != wide:
            return wide
    raise TypeError(
        "measure must return a number, a text, a dictionary of numbers and texts, or a report with to_dict(); got "
        f"{shown(value)}."
    )
