"""Tests of fpsim.runtime."""
