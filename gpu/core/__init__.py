"""Scalar functions that only GPU kernels call: encoders to nearest even, and arithmetic on codes in float32."""
