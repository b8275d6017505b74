"""Sums computed by an emulated accumulator: a format, a rounding mode and an order of additions."""
