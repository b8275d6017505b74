"""Scalar functions that compute one matrix instruction of AMD, Arm, NVIDIA and x86 processors."""
