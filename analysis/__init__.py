"""The error of low-precision formats: functions that take arrays and return reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.analysis.measures.exponent_range import RangeReport as RangeReport
    from fpsim.analysis.measures.exponent_range import exponents as exponents
    from fpsim.analysis.measures.rounding_error import ErrorReport as ErrorReport
    from fpsim.analysis.measures.rounding_error import error as error
    from fpsim.analysis.studies.report import StudyReport as StudyReport
    from fpsim.analysis.studies.study import study as study
    from fpsim.analysis.studies.sweep import sweep as sweep

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "measures.exponent_range": ["RangeReport", "exponents"],
        "measures.rounding_error": ["ErrorReport", "error"],
        "studies.report": ["StudyReport"],
        "studies.study": ["study"],
        "studies.sweep": ["sweep"],
    },
)
