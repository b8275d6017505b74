"""Checks of kernels that multiply matrices: their bits, and the fault that explains wrong ones."""
