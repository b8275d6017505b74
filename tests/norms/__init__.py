"""Tests of softmax and norms."""
