"""What precision costs: arrays in, frozen reports out."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpsim.analysis.error import ErrorReport as ErrorReport
    from fpsim.analysis.error import error as error
    from fpsim.analysis.range import RangeReport as RangeReport
    from fpsim.analysis.range import exponents as exponents
    from fpsim.analysis.study import study as study
    from fpsim.analysis.study_report import StudyReport as StudyReport

# Public name -> the module that defines it, loaded when the name is first used.
_HOMES = {
    "ErrorReport": "error",
    "RangeReport": "range",
    "StudyReport": "study_report",
    "error": "error",
    "exponents": "range",
    "study": "study",
}

__all__ = list(_HOMES)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # Importing analysis/error.py would bind the module to the package's `error`; the function keeps that name.
        if name in _HOMES and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fpsim.analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fpsim.analysis.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
