"""Tests of what one array loses: range, rounding error, underflow, drift, divergence."""
