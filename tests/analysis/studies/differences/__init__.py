"""Tests of `fp.analysis.diff`."""
