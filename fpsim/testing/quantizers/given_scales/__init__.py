"""Checks and identification of quantizers with a given or fixed scale, and of casts to integers."""
