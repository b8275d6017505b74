"""Programs that run the kernels of the GPU in the CUDA simulator."""
