"""Tests of scales that last over steps."""
