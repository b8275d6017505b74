"""What tests compare with: bits with bits."""

from fpsim.testing.bits import assert_bits_equal

__all__ = ["assert_bits_equal"]
