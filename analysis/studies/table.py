"""Tables given as rows, turned into columns of one type each: a data frame, or a Parquet or CSV file."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fpsim.display.optional import DataFrame, load
from fpsim.files import whole_file, write_whole

EXACT = 1 << 53  # integers up to here are exact in float64


MISSING: Any = object()  # a cell without a value in a table, where None can be a value


def columns_of(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> dict[str, list[Any]]:
    """Return column name -> values, made from rows (column name -> value).

    Columns named in `first` come before the others. A value that a row lacks is MISSING.
    """
    names = list(dict.fromkeys([*first, *(name for row in rows for name in row)]))
    return {name: [row.get(name, MISSING) for row in rows] for name in names}


def frame_of(columns: Mapping[str, list[Any]]) -> DataFrame:
    """Return a pandas data frame of the given columns, whose values are numbers, bools, texts, None or MISSING.

    A column of mixed types has dtype object. MISSING becomes NaN in columns of numbers, and None in others. Integers
    with missing values become float64 if all are exact in it. Otherwise, and for integers beyond int64, the dtype is
    object.
    """
    pandas = load("pandas", "a sweep")
    return pandas.DataFrame({name: _series(pandas, values) for name, values in columns.items()})


def _series(pandas: Any, values: list[Any]) -> Any:
    """Return a pandas Series of the first dtype that holds all values exactly: bool, int64, float64 or object.

    bool and int64 hold no MISSING. float64 holds floats and integers up to 2^53, with NaN for MISSING. object holds
    anything, with None for MISSING. pandas: the module.
    """
    present = [value for value in values if value is not MISSING]
    kinds = {type(value) for value in present}
    small = all(abs(value) <= EXACT for value in present if type(value) is int)
    if kinds == {bool} and len(present) == len(values):
        return pandas.Series(values, dtype=bool)
    if kinds == {int} and len(present) == len(values) and all(-(1 << 63) <= value < 1 << 63 for value in values):
        return pandas.Series(values, dtype="int64")
    if kinds and kinds <= {int, float} and small:
        return pandas.Series([math.nan if value is MISSING else value for value in values], dtype="float64")
    return pandas.Series([None if value is MISSING else value for value in values], dtype=object)


def write_table(folder: Path, name: str, columns: Mapping[str, list[Any]]) -> Path:
    """Write columns (name -> values) as `name`.parquet into the folder, and return its path.

    If pyarrow is not installed, write `name`.csv instead, with a warning. In Parquet, columns of mixed types become
    text. If writing fails, no file is left.
    """
    if importlib.util.find_spec("pyarrow") is None:
        warnings.warn(f"{folder / name}.csv is written, as Parquet needs pyarrow: pip install pyarrow", stacklevel=3)
        write_whole(folder / f"{name}.csv", csv_text(columns))
        return folder / f"{name}.csv"
    arrow = load("pyarrow", "Parquet")
    table = arrow.table({utf8(name): _arrow(arrow, values) for name, values in columns.items()})
    with whole_file(folder / f"{name}.parquet") as file:
        load("pyarrow.parquet", "Parquet").write_table(table, file)
    return folder / f"{name}.parquet"


def _arrow(arrow: Any, values: list[Any]) -> Any:
    """Return the values (bools, ints, floats, texts, None or MISSING) as a pyarrow array, in which NaN and null differ.

    Ints mixed with floats become floats if all are exact as floats. Other mixed types, and ints beyond int64, become
    text. arrow: the module pyarrow.
    """
    held = [None if value is MISSING else utf8(value) for value in values]
    kinds = {type(value) for value in held if value is not None}
    if kinds == {int, float} and all(abs(value) <= EXACT for value in held if type(value) is int):
        held = [float(value) if type(value) is int else value for value in held]
        kinds = {float}
    if len(kinds) > 1 or (
        kinds == {int} and not all(-(1 << 63) <= value < 1 << 63 for value in held if value is not None)
    ):
        held = [value if value is None or isinstance(value, str) else repr(value) for value in held]
        kinds = {str}
    types = {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    return arrow.array(held, types[kinds.pop()] if kinds else arrow.string(), from_pandas=False)


def utf8(value: Any) -> Any:
    """Return a text with each lone surrogate, which UTF-8 cannot encode, replaced by its escape, such as \\udc80.

    If `value` is not a text, it is returned unchanged.
    """
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # spreadsheets run text that begins so


def csv_text(columns: Mapping[str, list[Any]]) -> str:
    """Return columns (name -> values) as the text of a CSV file that a spreadsheet reads without running formulas."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a value of a table as a cell of a CSV file: "" for None or MISSING, else a text or number.

    A text that a spreadsheet would run as a formula gets an apostrophe in front.
    """
    text = "" if value is MISSING or value is None else utf8(value)
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text
