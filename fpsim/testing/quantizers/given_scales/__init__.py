"""Checks and identifies quantizers with a given or fixed scale, and casts to integers."""
