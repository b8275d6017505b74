"""Many short processes that share one folder of kernels, and what may happen to them."""
