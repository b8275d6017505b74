"""Checks of quantizers: what they should do, what they do, and why these differ."""
