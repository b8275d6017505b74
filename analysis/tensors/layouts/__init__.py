"""Layouts of quantised checkpoints: which tensors hold codes, which their scales, and which values they stand for."""
