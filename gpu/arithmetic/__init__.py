"""Elementwise arithmetic on codes on the GPU."""
