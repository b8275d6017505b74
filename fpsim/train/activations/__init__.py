"""Activations that do not wait for the backward pass: computed again, or written to files and loaded when needed."""
