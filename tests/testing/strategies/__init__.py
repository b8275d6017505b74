"""fp.testing.strategies."""
