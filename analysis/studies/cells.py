"""The file cells.jsonl of a sweep: it stores the finished points of the grid, one line with a checksum for each.

Lines are only appended. A line that a crash cut short, or that a disk damaged, fails its checksum and is ignored. A
killed process loses no line; a power failure may lose the lines of the last second.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple

from fpsim.errors import shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import lock, require_folder

NAME = "cells.jsonl"
VERSION = 1
SYNC = 1.0  # seconds between two waits until the disk has everything


class SweepCell(NamedTuple):
    """One point of a sweep's grid, with the result of the measured function or its error.

    Attributes:
      key: digest of the point, by which a later call finds the stored result.
      point: name of each parameter -> text that identifies its value.
      result: name -> number, text, bool or None; the attribute itself is None if the function failed at this point.
      error: the reason of the failure, or "".
    """

    key: str
    point: dict[str, str]
    result: dict[str, Any] | None
    error: str = ""


class Cells:
    """The open file cells.jsonl of a sweep, which stores the finished points of a grid (cells).

    It is locked against other processes until `close`.

    Args:
      folder: a folder, which is created if it is missing.
      measure, source: name of the function whose results are stored, and digest of its source; both must equal those in
        an existing file.
      parameters: names of the parameters of the grid.
      kind: noun for the task, such as "sweep", in the file's header and in messages.
      changed: end of the error message if `source` differs from the file's; it says what may have changed.
    Attributes:
      finished: key -> SweepCell, for every point in the file.
    Raises:
      ValueError: the folder cannot be written to; or its cells.jsonl belongs to another function or other parameters,
        does not begin as such a file does, or is locked by another process.

    Example:
      >>> import tempfile
      >>> from fpsim.analysis.studies.cells import Cells, SweepCell
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with Cells(folder, "f", "1234", ["x"]) as cells:
      ...         cells.add(SweepCell("aa", {"x": "1"}, {"value": float("nan")}))
      ...     with Cells(folder, "f", "1234", ["x"]) as cells:
      ...         cells.finished["aa"].result
      {'value': nan}
    """

    def __init__(
        self, folder: str | Path, measure: str, source: str, parameters: list[str], *, kind: str = "sweep",
        changed: str = "with other code or other captured values",
    ) -> None:  # fmt: skip
        self.folder = require_folder(folder)
        self.path = self.folder / NAME
        self.finished: dict[str, SweepCell] = {}
        self._kind, self._changed = kind, changed
        header = {kind: VERSION, "measure": measure, "source": source, "parameters": sorted(parameters)}
        if not self.path.exists():
            for name in ("sweep.parquet", "sweep.csv"):
                if (self.folder / name).exists():
                    raise ValueError(
                        f"out must be a new folder or the folder of a {kind}; got {shown(str(folder))}, which holds "
                        f"{name} and no {NAME}. Name another folder."
                    )
        self._file: IO[bytes] = self.path.open("a+b")
        try:
            lock(
                self._file,
                f"out must be a folder that no other {kind} writes to; got {shown(str(self.folder))}, to which one "
                "writes at the moment. Wait for it, or name another folder.",
            )
            self._read(header)
        except BaseException:
            self._file.close()
            raise
        self._synced = time.monotonic()

    def __enter__(self) -> Cells:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, cell: SweepCell) -> None:
        """Append a cell, a point with its result or error, to the file and to `finished`.

        When this method returns, the operating system has the line, so that it survives the end of this process.
        """
        fields: dict[str, Any] = {"key": cell.key, "point": cell.point}
        if cell.result is None:
            fields["error"] = cell.error
        else:
            fields["result"] = {name: to_json(value) for name, value in cell.result.items()}
        self._file.write(_line(fields).encode())
        self._file.flush()
        self.finished[cell.key] = cell
        if time.monotonic() - self._synced >= SYNC:
            self._sync()

    def close(self) -> None:
        """Wait until all lines are on the disk, then close and unlock the file."""
        if not self._file.closed:
            self._sync()
            self._file.close()

    def _sync(self) -> None:
        """Wait until all lines are on the disk."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _read(self, header: dict[str, Any]) -> None:
        """Read the finished points of the file into `finished`, and truncate the file after its last complete line.

        A file without a complete line gets `header` as its first line. Raise a ValueError if the first line of the file
        is another header, or if the file has no complete line and does not begin like a file of this class. Damaged
        lines are skipped.
        """
        end = 0
        self._file.seek(0)
        for number, line in enumerate(self._file):
            if not line.endswith(b"\n"):
                if number == 0 and line[: len(START)] != START[: len(line)]:  # no line that a crash cut short
                    self._compare(None, header)
                break
            end += len(line)
            fields = _fields(line)
            if number == 0:
                self._compare(fields, header)
            elif fields is not None:
                cell = _cell(fields)
                if cell is not None:
                    self.finished[cell.key] = cell
        self._file.truncate(end)  # removes the rest of a line that a crash cut short
        if end == 0:
            self._file.write(_line(header).encode())
            self._file.flush()

    def _compare(self, header: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
        """Raise a ValueError unless the header of the file suits this sweep.

        `header`: the file's first line as a dictionary; None if it is damaged. `wanted`: the header that a new file
        would get. Both must have the same version, measure (function name), parameters and source digest.
        """
        measure = wanted["measure"]
        if header is None or header.get(self._kind) != VERSION:
            expected = f"a new folder or the folder of a {self._kind}"
            got = f"where {NAME} does not begin like that of a {self._kind} of version {VERSION}"
        elif header.get("measure") != measure:
            expected, got = f"a folder of results of {measure}", f"which holds results of {header.get('measure')}"
        elif header.get("parameters") != wanted["parameters"]:
            expected = f"a folder of results for the parameters {', '.join(wanted['parameters'])}"
            got = f"whose parameters are {', '.join(map(str, header.get('parameters') or ()))}"
        elif header.get("source") != wanted["source"]:
            expected = f"a folder of results of this {measure}"
            got = f"which holds results of another version, {self._changed}"
        else:
            return
        raise ValueError(f"out must be {expected}; got {shown(str(self.folder))}, {got}. Name another folder.")


def stored(cells: Cells | None, key: str) -> dict[str, Any] | None:
    """Return the result that `cells` stores under a key; None if it has none, or if `cells` is None."""
    cell = None if cells is None else cells.finished.get(key)
    return None if cell is None else cell.result


def _line(fields: dict[str, Any]) -> str:
    """Return the line {"crc":"01234567","cell":TEXT} with its newline.

    TEXT is `fields` as a JSON object without spaces after commas and colons; crc is the CRC-32 of its UTF-8 bytes, as 8
    lower-case hexadecimal digits.
    """
    text = json.dumps(fields, separators=(",", ":"))
    return f'{{"crc":"{zlib.crc32(text.encode()):08x}","cell":{text}}}\n'


START = b'{"crc":"'
BEFORE = len('{"crc":"01234567","cell":')


def _fields(line: bytes) -> dict[str, Any] | None:
    """Return the dictionary from which `_line` made `line`; None if the line is damaged or its checksum differs."""
    text = line[BEFORE:-2]
    if not line.endswith(b"}\n") or line[:BEFORE] != f'{{"crc":"{zlib.crc32(text):08x}","cell":'.encode():
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _cell(fields: dict[str, Any]) -> SweepCell | None:
    """Return the SweepCell stored in a line of the file; None if a field is missing or of the wrong type.

    `fields`: key, point, and either result or error.
    """
    key, point, result, error = (fields.get(name) for name in ("key", "point", "result", "error"))
    if not isinstance(key, str) or not isinstance(point, dict):
        return None
    if isinstance(result, dict):
        return SweepCell(key, point, {name: from_json(value) for name, value in result.items()})
    return SweepCell(key, point, None, error) if isinstance(error, str) else None
