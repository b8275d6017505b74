"""What tests compare with, bits with bits, and what they do first; checks of kernels, which say what is wrong."""

from fpsim.analysis.measures.survival import assert_survives
from fpsim.lazy import face
from fpsim.testing import mutants
from fpsim.testing.bits import assert_bits_equal
from fpsim.testing.first_call import warm_up
from fpsim.testing.operands import OPERAND_SETS, product_operands
from fpsim.testing.products.check import check_kernel
from fpsim.testing.products.inputs import discriminating_inputs
from fpsim.testing.products.report import KernelReport

__all__ = [
    "OPERAND_SETS", "KernelReport", "assert_bits_equal", "assert_survives", "check_kernel", "discriminating_inputs",
    "mutants", "product_operands", "warm_up",
]  # fmt: skip

__getattr__, __dir__ = face(__name__, __all__)
