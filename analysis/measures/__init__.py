"""Measurements of an array or a sum: rounding errors, ranges of exponents, and errors of sums."""
