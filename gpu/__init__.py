"""The array functions of fpsim on the GPU, with the same names, arguments and bits.

They take torch CUDA tensors and arrays of cupy or numba, and return arrays of the same library. numba's CUDA support is
imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.gpu import hardware as hardware
    from fpsim.gpu.arithmetic.functions import absolute as absolute
    from fpsim.gpu.arithmetic.functions import add as add
    from fpsim.gpu.arithmetic.functions import cbrt as cbrt
    from fpsim.gpu.arithmetic.functions import classify as classify
    from fpsim.gpu.arithmetic.functions import convert as convert
    from fpsim.gpu.arithmetic.functions import cos as cos
    from fpsim.gpu.arithmetic.functions import divide as divide
    from fpsim.gpu.arithmetic.functions import equal as equal
    from fpsim.gpu.arithmetic.functions import erf as erf
    from fpsim.gpu.arithmetic.functions import erfc as erfc
    from fpsim.gpu.arithmetic.functions import exp as exp
    from fpsim.gpu.arithmetic.functions import exp2 as exp2
    from fpsim.gpu.arithmetic.functions import expm1 as expm1
    from fpsim.gpu.arithmetic.functions import fma as fma
    from fpsim.gpu.arithmetic.functions import from_int as from_int
    from fpsim.gpu.arithmetic.functions import gelu as gelu
    from fpsim.gpu.arithmetic.functions import less as less
    from fpsim.gpu.arithmetic.functions import less_equal as less_equal
    from fpsim.gpu.arithmetic.functions import log as log
    from fpsim.gpu.arithmetic.functions import log1p as log1p
    from fpsim.gpu.arithmetic.functions import log2 as log2
    from fpsim.gpu.arithmetic.functions import maximum as maximum
    from fpsim.gpu.arithmetic.functions import maximum_number as maximum_number
    from fpsim.gpu.arithmetic.functions import minimum as minimum
    from fpsim.gpu.arithmetic.functions import minimum_number as minimum_number
    from fpsim.gpu.arithmetic.functions import multiply as multiply
    from fpsim.gpu.arithmetic.functions import negative as negative
    from fpsim.gpu.arithmetic.functions import next_down as next_down
    from fpsim.gpu.arithmetic.functions import next_up as next_up
    from fpsim.gpu.arithmetic.functions import reciprocal as reciprocal
    from fpsim.gpu.arithmetic.functions import remainder as remainder
    from fpsim.gpu.arithmetic.functions import round_to_integral as round_to_integral
    from fpsim.gpu.arithmetic.functions import rsqrt as rsqrt
    from fpsim.gpu.arithmetic.functions import sigmoid as sigmoid
    from fpsim.gpu.arithmetic.functions import silu as silu
    from fpsim.gpu.arithmetic.functions import sin as sin
    from fpsim.gpu.arithmetic.functions import softplus as softplus
    from fpsim.gpu.arithmetic.functions import sqrt as sqrt
    from fpsim.gpu.arithmetic.functions import subtract as subtract
    from fpsim.gpu.arithmetic.functions import tan as tan
    from fpsim.gpu.arithmetic.functions import tanh as tanh
    from fpsim.gpu.arithmetic.functions import to_int as to_int
    from fpsim.gpu.casts.cast import cast as cast
    from fpsim.gpu.casts.cast import decode as decode
    from fpsim.gpu.casts.cast import encode as encode
    from fpsim.gpu.casts.cast import quantize as quantize
    from fpsim.gpu.device.device import GpuError as GpuError
    from fpsim.gpu.device.device import available as available
    from fpsim.gpu.experiments.bench import bench as bench
    from fpsim.gpu.experiments.record import record as record
    from fpsim.gpu.experiments.validate import validate as validate
    from fpsim.gpu.lab.bench_report import BenchReport as BenchReport
    from fpsim.gpu.lab.recording import replay as replay
    from fpsim.gpu.lab.report import ValidationReport as ValidationReport
    from fpsim.gpu.norms.functions import layer_norm as layer_norm
    from fpsim.gpu.norms.functions import log_softmax as log_softmax
    from fpsim.gpu.norms.functions import rms_norm as rms_norm
    from fpsim.gpu.norms.functions import softmax as softmax
    from fpsim.gpu.products.matmul import dot_add as dot_add
    from fpsim.gpu.products.matmul import matmul as matmul
    from fpsim.gpu.products.reduce import dot as dot
    from fpsim.gpu.products.reduce import sum as sum
    from fpsim.gpu.scaling.scaled import Scaled as Scaled
    from fpsim.gpu.scaling.scaled import encode_scaled as encode_scaled
    from fpsim.gpu.scaling.scaled import quantize_scaled as quantize_scaled

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "arithmetic.functions": [
            "absolute", "add", "cbrt", "classify", "convert", "cos", "divide", "equal", "erf", "erfc", "exp", "exp2",
            "expm1", "fma", "from_int", "gelu", "less", "less_equal", "log", "log1p", "log2", "maximum",
            "maximum_number", "minimum", "minimum_number", "multiply", "negative", "next_down", "next_up", "reciprocal",
            "remainder", "round_to_integral", "rsqrt", "sigmoid", "silu", "sin", "softplus", "sqrt", "subtract", "tan",
            "tanh", "to_int",
        ],
        "casts.cast": ["cast", "decode", "encode", "quantize"],
        "device.device": ["GpuError", "available"],
        "experiments.bench": ["bench"],
        "experiments.record": ["record"],
        "experiments.validate": ["validate"],
        "lab.bench_report": ["BenchReport"],
        "lab.recording": ["replay"],
        "lab.report": ["ValidationReport"],
        "norms.functions": ["layer_norm", "log_softmax", "rms_norm", "softmax"],
        "products.matmul": ["dot_add", "matmul"],
        "products.reduce": ["dot", "sum"],
        "scaling.scaled": ["Scaled", "encode_scaled", "quantize_scaled"],
    },
    modules=["hardware"],
    twin="fpsim",
)  # fmt: skip
