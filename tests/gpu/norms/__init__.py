"""Tests of softmax and norms on the GPU."""
