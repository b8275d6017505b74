"""What many tests use."""
