"""Activations that are computed again, whole or in slices, or that wait in files."""
