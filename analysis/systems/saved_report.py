"""The base class of reports on systems: saves JSON bit for bit, and converts rows to data frames and HTML tables."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields, is_dataclass
from typing import Any, ClassVar, Self

import numpy as np

from fpsim.display.optional import DataFrame, frame
from fpsim.display.tables import html_paragraphs, html_table
from fpsim.errors import shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole


class SavedReport:
    """Base class of reports with a field `rows`, which `save` writes as JSON and `load` restores bit for bit.

    Attributes:
      KIND: name of the kind of report, different in each subclass; `save` writes it into the file, `load` checks it.
      ROW: dataclass of an item of `rows`; None if `load` keeps rows as read.
      UNSAVED: names of fields that `save` leaves out.
      RENAMED: old name -> present name of fields of a row, so that `load` reads older files.
    """

    KIND = ""
    ROW: ClassVar[Any] = None
    RENAMED: ClassVar[dict[str, str]] = {}
    rows: Any
    UNSAVED: ClassVar[tuple[str, ...]] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a .json file, which `load` reads; an error leaves no partial file.

        Raises:
          ValueError: the path does not end in .json.
          OSError: the file cannot be written.
        """
        target = path_of(path)
        if target.suffix.lower() != ".json":
            raise ValueError(f"the file's name must end in .json; got {shown(target.name)}. Use 'report.json'.")
        names = [x.name for x in fields(self) if x.name not in self.UNSAVED]  # type: ignore[arg-type]
        plain = to_json({"kind": self.KIND, **{name: _as_lists(getattr(self, name)) for name in names}})
        write_whole(target, json.dumps(plain, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a report that `save` wrote, bit for bit.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is damaged, or does not hold a report of this class.
        """
        target = path_of(path)
        try:
            contents = from_json(json.loads(target.read_text(encoding="utf-8")))
        except ValueError as problem:
            raise ValueError(
                f"{target}: wanted a report as save() wrote it; damaged ({problem}). Save it again."
            ) from None
        if not isinstance(contents, dict) or contents.pop("kind", None) != cls.KIND:
            raise ValueError(f"{target}: wanted {cls.KIND}, got a file of another kind. Save one with .save(path).")
        try:
            if missing := {x.name for x in fields(cls)} - {*contents, *cls.UNSAVED}:  # type: ignore[arg-type]
                raise KeyError(*missing)
            for field in fields(cls):  # type: ignore[arg-type]
                if str(field.type).startswith("tuple"):
                    contents[field.name] = _as_tuples(contents[field.name])
            if cls.ROW is not None:
                rows = [{cls.RENAMED.get(name, name): value for name, value in row.items()} for row in contents["rows"]]
                contents["rows"] = tuple(cls.ROW(**row) for row in rows)
            return cls._made(contents)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise ValueError(
                f"{target}: wanted {cls.KIND} as save() wrote it; parts are missing or have other types. Save it again."
            ) from None

    @classmethod
    def _made(cls, contents: dict[str, Any]) -> Self:
        """Return a report with the fields in `contents`, name -> value, whose tuples and rows `load` has restored."""
        return cls(**contents)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each item of `rows`, a column for each of its fields."""
        return frame([asdict(row) for row in self.rows])

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the report's text, a paragraph for each line, then a table of `rows`."""
        text = html_paragraphs(str(self).splitlines())
        return text + html_table([x.name for x in fields(self.ROW)], (asdict(row).values() for row in self.rows))


def _as_lists(value: Any) -> Any:
    """Return a nested value for JSON: tuples become lists, dataclasses dicts, and NumPy's numbers Python's."""
    if is_dataclass(value):
        value = asdict(value)  # type: ignore[arg-type]
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_lists(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _as_tuples(value: Any) -> Any:
    """Return the list `value` and all lists in it as tuples; raise TypeError unless `value` is a list."""
    if not isinstance(value, list):
        raise TypeError(f"wanted a list; got {shown(value)}")
    return tuple(_as_tuples(item) if isinstance(item, list) else item for item in value)
