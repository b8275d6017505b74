"""The operands that each chip multiplies in hardware, and the fallbacks of a recipe on chips without them."""
