"""Checks of stochastic rounding: means, independence, and what averaging gains."""
