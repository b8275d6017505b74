"""Scalar core: integers in, integers out. One body for the CPU and for CUDA."""
