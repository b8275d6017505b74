"""Tests of many products at once."""
