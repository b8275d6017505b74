"""Tests of fpsim.testing."""
