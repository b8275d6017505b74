"""Loops over the terms of sums."""
