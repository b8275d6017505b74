"""Codes with a scale per tile."""
