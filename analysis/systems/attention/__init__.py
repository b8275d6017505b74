"""Attention in chosen formats: scores, softmax, the product with values, and caches of keys and values."""
