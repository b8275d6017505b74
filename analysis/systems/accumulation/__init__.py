"""Sums of the gradients of micro-batches, in chosen formats."""
