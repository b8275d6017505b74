"""Casts on the GPU: values to codes of a format, and back."""
