"""Tests of files that hold tensors, and of what their names say."""
