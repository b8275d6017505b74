"""Tests of fpsim.analysis."""
