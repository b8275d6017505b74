"""Loops of matrix products."""
