"""The base class of reports on systems, which saves JSON with every bit, and makes data frames and HTML tables."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from fpsim.display.optional import DataFrame, frame
from fpsim.display.tables import html_paragraphs, html_table
from fpsim.errors import shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole


class SavedReport:
    """A report made of `rows`, which is saved as JSON and loaded again bit for bit.

    Attributes:
      KIND: name of the report in its file, which `load` checks.
      ROW: dataclass of a row.
      UNSAVED: names of fields that files leave out.
      RENAMED: old name -> new name of fields of a row, for older files.
    """

    KIND = ""
    ROW: ClassVar[Any] = None
    RENAMED: ClassVar[dict[str, str]] = {}
    rows: Any
    UNSAVED: ClassVar[tuple[str, ...]] = ()  # names of fields that files leave out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report into a .json file, whole or not at all.

        Raises:
          ValueError: the path does not end in .json.
          OSError: the file cannot be written.
        """
        target = path_of(path)
        if target.suffix.lower() != ".json":
            raise ValueError(f"the file's name must end in .json; got {shown(target.name)}. Use 'report.json'.")
        plain = to_json({"kind": self.KIND, **_as_lists(self._saved())})
        write_whole(target, json.dumps(plain, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a report that `save` wrote, bit for bit.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is damaged, or holds something else.
        """
        contents = cls._read(path)
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
                f"{path_of(path)}: wanted {cls.KIND} as save() wrote it; parts are missing or have other types. Save "
                "it again."
            ) from None

    def _saved(self) -> dict[str, Any]:
        """Return the report's fields that `save` writes."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def _made(cls, contents: dict[str, Any]) -> Self:
        """Return a report made of saved fields; JSON's lists become tuples again where the class wants tuples."""
        return cls(**contents)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each row of the report."""
        return frame([asdict(row) for row in self.rows])

    def _repr_html_(self) -> str:
        """Return the report's text, a paragraph for each line, and a table of its rows."""
        text = html_paragraphs(str(self).splitlines())
        return text + html_table([x.name for x in fields(self.ROW)], (asdict(row).values() for row in self.rows))

    @classmethod
    def _read(cls, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the saved fields of a report's file, after checking that it holds a report of this class.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file holds something else, or is damaged.
        """
        target = path_of(path)
        try:
            contents = from_json(json.loads(Path(target).read_text(encoding="utf-8")))
        except (ValueError, UnicodeDecodeError) as problem:
            raise ValueError(
                f"{target}: wanted a report as save() wrote it; damaged ({problem}). Save it again."
            ) from None
        if not isinstance(contents, dict) or contents.pop("kind", None) != cls.KIND:
            raise ValueError(f"{target}: wanted {cls.KIND}, got a file of something else. Save one with .save(path).")
        return contents


def _as_lists(value: Any) -> Any:
    """Return a value with lists in place of tuples, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_lists(item) for item in value]
    return value


def _as_tuples(value: Any) -> Any:
    """Return nested lists as nested tuples."""
    if not isinstance(value, list):
        raise TypeError(f"wanted a list; got {shown(value)}")
    return tuple(_as_tuples(item) if isinstance(item, list) else item for item in value)
