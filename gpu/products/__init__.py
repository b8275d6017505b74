"""Matrix products, sums and dot products on the GPU."""
