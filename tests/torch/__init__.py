"""Tests of fpsim.torch."""
