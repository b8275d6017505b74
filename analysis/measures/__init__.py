"""Measures of one array or sum: rounding errors, exponent ranges, and errors of sums."""
