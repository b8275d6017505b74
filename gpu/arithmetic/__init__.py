"""Arithmetic on codes on the GPU."""
