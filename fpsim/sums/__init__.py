"""Sums by an accumulator: a format, a rounding and an order."""
