"""What tests compare with, bits with bits, and what they do first."""

from fpsim.analysis.measures.survival import assert_survives
from fpsim.lazy import face
from fpsim.testing.bits import assert_bits_equal
from fpsim.testing.first_call import warm_up
from fpsim.testing.operands import OPERAND_SETS, product_operands

__all__ = ["OPERAND_SETS", "assert_bits_equal", "assert_survives", "product_operands", "warm_up"]

__getattr__, __dir__ = face(__name__, __all__)
