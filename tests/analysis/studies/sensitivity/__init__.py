"""Tests of sensitivity."""
