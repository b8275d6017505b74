"""Import of optional packages on first use; the error for a missing package says what to install."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fpsim.errors import install

if TYPE_CHECKING:
    from distributed import Client as Client
    from matplotlib.axes import Axes as Axes
    from pandas import DataFrame as DataFrame
else:  # the names are for annotations alone, and import nothing
    Axes = Client = DataFrame = Any

# Package -> the extra of fpsim that installs it.
EXTRAS = {
    "jinja2": "plot", "matplotlib": "plot", "pandas": "plot", "rich": "cli", "torch": "torch", "typer": "cli",
    "joblib": "sweep", "cloudpickle": "sweep", "distributed": "dask", "tomli_w": "train",
}  # fmt: skip
# Package -> its name on PyPI, if that differs.
DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def load(module: str, purpose: str) -> Any:
    """Import a module of an optional package and return it; purpose: the feature that needs it, for the error.

    Raises:
      ImportError: the module is not installed; the message says what needs it and how to install it.

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
            raise  # the package is installed, but something that it imports is not
        raise _missing(package, purpose) from None


def require(packages: Sequence[str], purpose: str) -> None:
    """Raise an ImportError unless packages are installed; they are not imported.

    purpose: the feature that needs them, for the error.

    Example:
      >>> from fpsim.display.optional import require
      >>> require(["json", "email"], "reading letters")
    """
    for package in packages:
        if sys.modules.get(package) is None and importlib.util.find_spec(package) is None:
            raise _missing(package, purpose)


def _missing(package: str, purpose: str) -> ImportError:
    """Return the ImportError for a package that is not installed; purpose: the feature that needs it."""
    name = DISTRIBUTIONS.get(package, package)
    how = install(EXTRAS[package]) if package in EXTRAS else f"pip install {name}"
    return ImportError(f"{purpose} needs {name}, which is not installed: {how}")


def frame(rows: list[dict[str, Any]]) -> DataFrame:
    """Return rows, each a dict of column -> value, as a pandas DataFrame."""
    return load("pandas", "to_frame()").DataFrame(rows)
