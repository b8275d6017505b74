"""fp.testing.conformance."""
