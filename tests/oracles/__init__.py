"""Slow and obvious statements of what is right, which share nothing with the package."""
