"""Casts: values to codes of a format, and back."""
