"""Tests of fpsim.formats."""
