"""Checks of stochastic rounding: means, independence of draws, and precision gained by averaging."""
