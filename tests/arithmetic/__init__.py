"""Tests of fpsim.arithmetic."""
