"""Scales that last over steps."""
