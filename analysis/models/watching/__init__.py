"""Observation of a model while it is recorded: its forward passes, products, weights and scales."""
