"""Layouts of quantised checkpoints: the tensors of codes and scales, and the values that they represent."""
