"""Tests of fpsim.casts."""
