"""Tests of fpsim.analysis.systems."""
