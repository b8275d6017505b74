"""Softmax and norms on the GPU."""
