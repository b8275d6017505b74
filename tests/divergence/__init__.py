"""Tests of the first difference between two runs."""
