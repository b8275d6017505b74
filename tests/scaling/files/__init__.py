"""Tests of files that scaled tensors are saved to."""
