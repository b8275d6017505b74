"""Which operands each chip multiplies in hardware, and what a recipe falls back to where it lacks some."""
