"""Packages that fpsim works without: loaded on first use, and their absence says what to install."""

from __future__ import annotations

import importlib
from typing import Any

INSTALL_PLOT = "pip install 'fpsim-numerics[plot]' (from a checkout: pip install -e '.[plot]')"

# Package -> what to install.
REMEDIES = {
    "matplotlib": "fpsim-numerics[plot]",
    "pandas": "fpsim-numerics[plot]",
    "pyarrow": "pyarrow",
    "rich": "fpsim-numerics[cli]",
    "torch": "fpsim-numerics[torch]",
    "typer": "fpsim-numerics[cli]",
}


def load(module: str, purpose: str) -> Any:
    """The module, imported now.

    Raises:
      ImportError: it is not installed; the message says what needs it and how to get it.

    Example:
      >>> from fpsim.display.optional import load
      >>> load("json", "reading headers").loads("[1, 2]")
      [1, 2]
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != package:
            raise  # it is there, and something that it needs is not
        wanted = REMEDIES.get(package, package)
        checkout = f" (from a checkout: pip install -e '.[{wanted[15:-1]}]')" if wanted.startswith("fpsim") else ""
        line = f"{purpose} needs {package}, which is not installed: pip install '{wanted}'{checkout}"
        raise ImportError(line) from None


def frame(rows: list[dict[str, Any]]) -> Any:
    """Rows as a pandas DataFrame."""
    return load("pandas", "to_frame()").DataFrame(rows)
