"""The digest of the package's source files: it names the folder of the compiled kernels."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def digest(package: Path = PACKAGE) -> str:
    """Digest of the names and contents of every Python file below a package, links followed; "" without any."""
    found = hashlib.blake2b(digest_size=10)
    files = sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
        if name.endswith(".py")
    )
    for file in files:
        content = Path(file).read_bytes()
        found.update(f"{os.path.relpath(file, package)}:{len(content)}:".encode())
        found.update(content)
    return found.hexdigest() if files else ""


AT_IMPORT = digest()


def edited() -> bool:
    """Whether a source file changed since this process imported the package."""
    return digest() != AT_IMPORT
