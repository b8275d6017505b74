"""Scalar elementary functions of float32, correctly rounded to nearest even: one body for CPU and CUDA."""
