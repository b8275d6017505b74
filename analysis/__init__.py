"""The error of low-precision formats: functions that take arrays and return reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.analysis.measures.comparison import Comparison as Comparison
    from fpsim.analysis.measures.comparison import compare as compare
    from fpsim.analysis.measures.error_report import ErrorReport as ErrorReport
    from fpsim.analysis.measures.exponent_range import RangeReport as RangeReport
    from fpsim.analysis.measures.exponent_range import exponents as exponents
    from fpsim.analysis.measures.exponent_range import range as range
    from fpsim.analysis.measures.rounding_error import error as error
    from fpsim.analysis.studies.report import StudyReport as StudyReport
    from fpsim.analysis.studies.study import study as study
    from fpsim.analysis.tensors.opening import tensor as tensor
    from fpsim.analysis.tensors.tensor import Tensor as Tensor

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "measures.exponent_range": ["RangeReport", "exponents", "range"],
        "measures.comparison": ["Comparison", "compare"],
        "measures.error_report": ["ErrorReport"],
        "measures.rounding_error": ["error"],
        "studies.report": ["StudyReport"],
        "studies.study": ["study"],
        "tensors.opening": ["tensor"],
        "tensors.tensor": ["Tensor"],
    },
)
