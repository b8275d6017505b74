"""Tests of what a training loop calls by name."""
