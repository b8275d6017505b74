"""fpsim: low-precision floating point, emulated bit for bit at the speed of the machine.

>>> import numpy as np, fpsim as fp
>>> fp.quantize(np.float32([0.1, 1.3, 500.0]), fp.E4M3, overflow="saturate")
array([1.015625e-01, 1.250000e+00, 4.480000e+02], dtype=float32)

(PYTEST_DONT_REWRITE: see _fpsim_pytest.py.)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fpsim import schedules
from fpsim.arithmetic.comparison import (
    classify,
    equal,
    less,
    less_equal,
    maximum,
    maximum_number,
    minimum,
    minimum_number,
)
from fpsim.arithmetic.conversion import convert, from_int, to_int
from fpsim.arithmetic.elementary.functions import (
    cbrt,
    cos,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    gelu,
    log,
    log1p,
    log2,
    reciprocal,
    rsqrt,
    sigmoid,
    silu,
    sin,
    softplus,
    tan,
    tanh,
)
from fpsim.arithmetic.encoded_array import EncodedArray, array
from fpsim.arithmetic.functions import (
    absolute,
    add,
    divide,
    fma,
    multiply,
    negative,
    next_down,
    next_up,
    remainder,
    round_to_integral,
    sqrt,
    subtract,
)
from fpsim.arithmetic.rounding_context import rounding
from fpsim.casts.bias import encode_with_bias
from fpsim.casts.cast import cast, decode, encode, quantize
from fpsim.casts.explain import explain
from fpsim.casts.explanation import Explanation
from fpsim.casts.policy_diff import Difference, policy_diff
from fpsim.formats import policies as policies
from fpsim.formats.finfo import FloatInfo, finfo
from fpsim.formats.ieee import Flags, FloatClass
from fpsim.formats.integer_format import INT4, INT8, UINT4, UINT8, IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E3M4,
    E4M3,
    E4M3_IEEE,
    E4M3B11FNUZ,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
    format,
)
from fpsim.formats.policies import policy
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import BNB_FP4, HIF4, HIF8, IF4, NF4, TableFormat
from fpsim.instructions.dot_add import dot_add
from fpsim.lazy import imported, no_attribute
from fpsim.matrix_units.catalogue import unit, units
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.norms.lane_sum import LaneSum
from fpsim.norms.norms import layer_norm, rms_norm
from fpsim.norms.softmax import log_softmax, softmax
from fpsim.products.integers.onnx import matmul_integer, qlinear_matmul
from fpsim.products.matmul import matmul
from fpsim.products.reduce import dot, sum
from fpsim.products.stacks.convolution import conv2d, patches
from fpsim.products.stacks.grouped import grouped_matmul
from fpsim.scaling import recipes as scalings
from fpsim.scaling.report import ScaleCounts, ScaleReport
from fpsim.scaling.scaled import Scaled, encode_both_ways, encode_scaled, quantize_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.states.delayed import DelayedScaling
from fpsim.scaling.states.periodic import OnlineScaling, PeriodicScaling
from fpsim.splits.multiply import split_matmul, split_parts
from fpsim.splits.ozaki import ozaki_matmul
from fpsim.sums.accumulators import Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential

if TYPE_CHECKING:
    from fpsim import analysis, cpu, gpu, probe, recipes, splits, testing, torch, train
    from fpsim.analysis.systems.dispatch.chips import chips

__version__ = "0.1.0"

__all__ = [
    "BF16", "BNB_FP4", "E2M1", "E2M3", "E3M2", "E3M4", "E4M3", "E4M3B11FNUZ", "E4M3FNUZ", "E4M3_IEEE", "E5M2",
    "E5M2FNUZ", "E8M0", "FP16", "FP32", "FP64", "HIF4", "HIF8", "IF4", "INT4", "INT8", "NF4", "TF32", "UINT4", "UINT8",
    "Chunked", "DelayedScaling", "Difference", "EncodedArray", "Exact", "Explanation", "Flags", "FloatClass",
    "FloatInfo", "Format", "FusedMultiplyAdd", "IntegerFormat", "IntegerUnit", "LaneSum", "LogFMT", "MatrixUnit",
    "OnlineScaling", "Pairwise", "PeriodicScaling", "Rounding", "ScaleCounts", "ScaleReport", "Scaled", "Scaling",
    "Sequential", "TableFormat",
    "absolute", "add", "analysis", "array", "cast", "cbrt", "chips", "classify", "conv2d", "convert", "cos", "cpu",
    "decode", "divide", "dot", "dot_add", "encode", "encode_both_ways", "encode_scaled", "encode_with_bias",
    "equal", "erf", "erfc", "exp", "exp2", "explain", "expm1", "finfo", "fma", "format", "from_int", "gelu", "gpu",
    "grouped_matmul", "layer_norm", "less", "less_equal", "log", "log1p", "log2", "log_softmax", "matmul",
    "matmul_integer", "maximum", "maximum_number", "minimum", "minimum_number", "multiply", "negative", "next_down",
    "next_up", "ozaki_matmul", "patches", "policy", "policy_diff", "probe", "qlinear_matmul", "quantize",
    "quantize_scaled", "recipes", "reciprocal", "remainder", "rms_norm", "round_to_integral", "rounding", "rsqrt",
    "scalings", "schedules", "sigmoid", "silu", "sin", "softmax", "softplus", "split_matmul", "split_parts",
    "splits", "sqrt", "subtract", "sum", "tan", "tanh", "testing", "to_int", "torch", "train", "unit", "units",
]  # fmt: skip

_PACKAGES = ("analysis", "cpu", "gpu", "probe", "recipes", "splits", "testing", "torch", "train")


def __getattr__(name: str) -> Any:
    """Import a subpackage when it is first used, or return a P3109 format by name, such as `fp.p3109_k8p4se`."""
    if name in _PACKAGES:
        return imported(f"fpsim.{name}")
    if name == "chips":
        return imported("fpsim.analysis.systems.dispatch.chips").chips
    if name.startswith("p3109_"):
        try:
            return format(name)
        except ValueError as reason:
            raise AttributeError(f"module 'fpsim' has no attribute {name!r}: {reason}") from None
    bits = re.fullmatch(r"E(\d)M(\d)", name)
    hint = f" Your own is fp.Format({name!r}, exponent_bits={bits[1]}, mantissa_bits={bits[2]})." if bits else ""
    raise no_attribute("fpsim", name, __dir__(), more=hint)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "formats", "policies"])
