"""Many products at once: stacks of matrices, groups of rows, and convolutions."""
