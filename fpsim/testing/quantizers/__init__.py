"""Checks of quantizers against a promised cast, bit by bit, and the faults that explain wrong results."""
