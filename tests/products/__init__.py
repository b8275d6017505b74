"""Tests of fpsim.products."""
