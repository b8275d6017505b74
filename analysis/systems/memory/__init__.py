"""Bytes of training: parameters, gradients, optimizer states, activations and scales."""
