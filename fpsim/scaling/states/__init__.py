"""Scales that persist from one training step to the next: delayed, periodic and online."""
