"""Scalar functions for running sums and exact sums."""
