"""Tests of fpsim.scaling."""
