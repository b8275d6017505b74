"""The kernels of the GPU as PTX, which takes no GPU."""
