"""Recordings of running models: hooks record the operands of products, and do not change results."""
