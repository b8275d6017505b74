"""Writes files of results completely or not at all, into a folder that has been checked to be writeable."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fpsim.errors import shown

INTERRUPTED = 130  # how a command ends after Ctrl-C: 128 + SIGINT, as in shells


def path_of(path: object, name: str = "path") -> Path:
    """A path as it was passed.

    Raises:
      TypeError: it is neither text nor a path.

    Example:
      >>> from fpsim.files import path_of
      >>> path_of("codes.npz").suffix
      '.npz'
    """
    try:
        return Path(path)  # type: ignore[arg-type]  # what is no path is refused
    except TypeError:
        raise TypeError(f"{name} must be a text or a pathlib.Path; got {shown(path)}.") from None


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write; whoever reads it sees the old one or the new one, also where this process dies."""
    target = path_of(path)
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(draft, 0o644)  # mkstemp's files are their owner's alone
        os.replace(draft, target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole_file(path) as file:
        file.write(text.encode())


def require_folder(path: str | Path) -> Path:
    """A folder that files can be written to, made where it is missing.

    Raises:
      ValueError: it cannot be made or written to, or is a file; better now than after minutes of work.
    """
    folder = path_of(path, "folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as reason:
        raise ValueError(
            f"results go to a folder that can be written to; got {shown(str(folder))}: {reason.strerror}. Name another."
        ) from None


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to write files to, which move into `folder` together when the block ends, or vanish if it fails.

    Example:
      >>> import tempfile, pathlib
      >>> from fpsim.files import replacing
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with replacing(pathlib.Path(folder)) as drafts:
      ...         _ = (drafts / "a.txt").write_text("complete")
      ...     [path.name for path in pathlib.Path(folder).iterdir()]
      ['a.txt']
    """
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as name:
        drafts = Path(name)
        yield drafts
        for draft in sorted(drafts.iterdir()):
            draft.replace(folder / draft.name)
