"""Base of reports on systems: files of JSON that keep every bit, and tables for notebooks."""

from __future__ import annotations

import html
import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from fpsim.errors import shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole


class SavedReport:
    """A report of numbers and texts that is saved as JSON, every bit of it."""

    KIND = ""
    UNSAVED: ClassVar[tuple[str, ...]] = ()  # names of fields that files leave out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report into a .json file, whole or not at all.

        Raises:
          ValueError: another ending.
          OSError: the file cannot be written.
        """
        target = path_of(path)
        if target.suffix.lower() != ".json":
            raise ValueError(f"the file's name must end in .json; got {shown(target.name)}. Use 'report.json'.")
        plain = to_json({"kind": self.KIND, **_as_lists(self._saved())})
        write_whole(target, json.dumps(plain, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return what `save` wrote, bit for bit.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: it is damaged, or holds something else.
        """
        contents = cls._read(path)
        try:
            if missing := {each.name for each in fields(cls)} - {*contents, *cls.UNSAVED}:  # type: ignore[arg-type]
                raise KeyError(*missing)
            return cls._made(contents)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise ValueError(
                f"{path_of(path)}: wanted {cls.KIND} as save() wrote it; parts are missing or of another kind. Save it "
                "again."
            ) from None

    def _saved(self) -> dict[str, Any]:
        """Return the fields that are saved."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def _made(cls, contents: dict[str, Any]) -> Self:
        """Return a report of the fields that were saved, with tuples in place of lists."""
        return cls(**contents)

    @classmethod
    def _read(cls, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return what `save` wrote.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: it holds something else, or is damaged.
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
    """Return a value with lists in place of tuples, as JSON has them."""
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_lists(item) for item in value]
    return value


def table(names: list[str], rows: list[dict[str, Any]]) -> str:
    """Return a table in HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(row[name]))}</td>" for name in names) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
