"""Compiled loops of matrix products."""
