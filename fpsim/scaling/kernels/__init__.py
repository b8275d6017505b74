"""Compiled CPU loops over tiles and their elements."""
