"""Sums of integers as black boxes: the rules by which they wrap or saturate, and models with these rules."""
