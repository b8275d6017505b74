"""Sums of integers as black boxes: rules by which they wrap or saturate, and models of these."""
