"""Activations that do not wait in memory for the backward pass: computed again, or kept in files until needed."""
