"""Compiled CPU loops over the terms of sums."""
