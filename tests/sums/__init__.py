"""Tests of fpsim.sums."""
