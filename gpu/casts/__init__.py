"""Casts on the GPU."""
