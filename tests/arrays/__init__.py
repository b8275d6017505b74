"""Tests of fpsim.arrays."""
