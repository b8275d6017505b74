"""Tests of fpsim.instructions."""
