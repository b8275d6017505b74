"""Files of results: written whole or not at all, into a folder that is known to take them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file; whoever reads it sees the old one or the new one, also where this process dies."""
    target = Path(path)
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(draft, 0o644)  # mkstemp's files are their owner's alone
        os.replace(draft, target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def require_folder(path: str | Path) -> Path:
    """A folder that files can be written to, made where it is missing.

    Raises:
      ValueError: it cannot be made or written to, or is a file; better now than after minutes of work.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as reason:
        raise ValueError(
            f"results go to a folder that can be written to; got {str(folder)!r}: {reason.strerror}. Name another."
        ) from None
