"""Layouts of quantised checkpoints: which tensors store codes and scales, and the values that they represent."""
