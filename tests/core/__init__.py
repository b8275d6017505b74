"""Tests of fpsim.core."""
