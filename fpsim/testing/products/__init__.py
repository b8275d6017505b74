"""Checks of matrix-multiplication kernels against a promise, bit by bit, and the faults that explain wrong results."""
