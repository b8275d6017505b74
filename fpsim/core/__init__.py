"""Scalar core: functions from integers to integers, with one body for the CPU and for CUDA."""
