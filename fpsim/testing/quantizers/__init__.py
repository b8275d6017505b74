"""Checks of quantizers against the cast that they promise, and the causes of differences."""
