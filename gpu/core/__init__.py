"""Scalar functions that only the GPU has."""
