"""Checks and identifies quantizers whose scale is given, or fixed, and casts to integers."""
