"""Products of integers: exact sums that wrap or saturate, zero points, and epilogues in floats."""
