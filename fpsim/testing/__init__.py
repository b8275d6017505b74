"""Tools for tests: comparisons of bits, inputs, and checks of quantizers and kernels that name what is wrong."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fpsim.analysis.measures.survival import assert_survives
from fpsim.lazy import face
from fpsim.testing import mutants
from fpsim.testing.bits import assert_bits_equal
from fpsim.testing.boundary_points import points
from fpsim.testing.first_call import warm_up
from fpsim.testing.mutants.score import MutationReport, mutation_score
from fpsim.testing.operands import OPERAND_SETS, product_operands
from fpsim.testing.products.check import check_kernel
from fpsim.testing.products.inputs import discriminating_inputs
from fpsim.testing.products.report import KernelReport
from fpsim.testing.quantizers.check import check_quantizer
from fpsim.testing.quantizers.identity import QuantizerIdentity, identify_quantizer
from fpsim.testing.quantizers.report import Broken, QuantizerReport
from fpsim.testing.quantizers.scales.identity import ScalingIdentity, identify_scaling
from fpsim.testing.quantizers.stochastic.check import check_stochastic
from fpsim.testing.quantizers.stochastic.report import StochasticReport

if TYPE_CHECKING:
    from fpsim.testing import conformance, strategies

__all__ = [
    "OPERAND_SETS", "Broken", "KernelReport", "MutationReport", "QuantizerIdentity", "QuantizerReport",
    "ScalingIdentity", "StochasticReport", "assert_bits_equal", "assert_survives", "check_kernel", "check_quantizer",
    "check_stochastic", "conformance", "discriminating_inputs", "identify_quantizer", "identify_scaling", "mutants",
    "mutation_score", "points", "product_operands", "strategies", "warm_up",
]  # fmt: skip

_missing, __dir__ = face(__name__, __all__)


def __getattr__(name: str) -> Any:
    if name in ("conformance", "strategies"):  # which load every kind of arithmetic, and Hypothesis
        return importlib.import_module(f"fpsim.testing.{name}")
    return _missing(name)
