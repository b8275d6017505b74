"""Tests of the elementary functions of arrays."""
