"""The GPU against the CPU: in the CUDA simulator, as PTX, and by recordings."""
