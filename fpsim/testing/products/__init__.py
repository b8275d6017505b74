"""Checks of kernels that multiply matrices: bits, and what a kernel does instead of what it promises."""
