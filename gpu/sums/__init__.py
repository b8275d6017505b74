"""Sums by an accumulator on the GPU."""
