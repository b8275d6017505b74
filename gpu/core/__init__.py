"""Scalar functions that only the GPU uses."""
