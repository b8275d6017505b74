"""Scales that are kept from one training step to the next: delayed, periodic and online."""
