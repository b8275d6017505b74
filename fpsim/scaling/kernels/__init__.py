"""Loops over tiles and their elements."""
