"""Checks of stochastic rounding: shares, means, independence, and what averaging gains."""
