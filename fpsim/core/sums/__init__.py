"""Scalar steps of running and exact sums."""
