"""The array functions of fpsim on the GPU, with the same names, arguments and bits.

They take torch CUDA tensors and arrays of cupy or numba, and return arrays of the same kind. numba's CUDA support is
loaded when the first of them is used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fpsim.gpu.device import GpuError, available

if TYPE_CHECKING:
    from fpsim.gpu import hardware
    from fpsim.gpu.arithmetic import (
        absolute,
        add,
        classify,
        convert,
        divide,
        equal,
        fma,
        from_int,
        less,
        less_equal,
        maximum,
        maximum_number,
        minimum,
        minimum_number,
        multiply,
        negative,
        next_down,
        next_up,
        remainder,
        round_to_integral,
        sqrt,
        subtract,
        to_int,
    )
    from fpsim.gpu.bench import bench
    from fpsim.gpu.bench_report import BenchReport
    from fpsim.gpu.cast import cast, decode, encode, quantize
    from fpsim.gpu.matmul import dot_add, matmul
    from fpsim.gpu.record import record
    from fpsim.gpu.recording import replay
    from fpsim.gpu.reduce import dot, sum
    from fpsim.gpu.report import ValidationReport
    from fpsim.gpu.scaled import Scaled
    from fpsim.gpu.scaling import encode_scaled, quantize_scaled
    from fpsim.gpu.validate import validate

__all__ = [
    "BenchReport", "GpuError", "Scaled", "ValidationReport", "absolute", "add", "available", "bench", "cast",
    "classify", "convert", "decode", "divide", "dot", "dot_add", "encode", "encode_scaled", "equal", "fma", "from_int",
    "hardware", "less", "less_equal", "matmul", "maximum", "maximum_number", "minimum", "minimum_number", "multiply",
    "negative", "next_down", "next_up", "quantize", "quantize_scaled", "record", "remainder", "replay",
    "round_to_integral", "sqrt", "subtract", "sum", "to_int", "validate",
]  # fmt: skip

_MODULES = {
    "bench": ("bench",),
    "bench_report": ("BenchReport",),
    "cast": ("cast", "decode", "encode", "quantize"),
    "matmul": ("dot_add", "matmul"),
    "record": ("record",),
    "recording": ("replay",),
    "reduce": ("dot", "sum"),
    "report": ("ValidationReport",),
    "scaled": ("Scaled",),
    "scaling": ("encode_scaled", "quantize_scaled"),
    "validate": ("validate",),
}
_HOMES = {name: "arithmetic" for name in __all__ if name not in ("GpuError", "available", "hardware")} | {
    name: module for module, names in _MODULES.items() for name in names
}


class _Package(ModuleType):
    """This package: `fpsim.gpu.cast` is the function, as `fpsim.cast` is, also once its module has been imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOMES.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Functions load with numba's CUDA support when they are first used."""
    if name == "hardware":
        return importlib.import_module("fpsim.gpu.hardware")
    if name in _HOMES:
        return getattr(importlib.import_module(f"fpsim.gpu.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fpsim.gpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
