"""Tests of fpsim.schedules."""
