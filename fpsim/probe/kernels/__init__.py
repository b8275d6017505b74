"""Compiled loops that compute sums by a tree of additions."""
