"""The first difference between two runs of matrix products, and its cause."""
