"""Tests of sums in any order."""
