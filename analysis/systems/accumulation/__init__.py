"""Sums of micro-batches of gradients in chosen formats."""
