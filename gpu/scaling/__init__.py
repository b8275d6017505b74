"""Codes with a scale per tile on the GPU."""
