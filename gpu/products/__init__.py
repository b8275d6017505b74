"""Matrix products on the GPU."""
