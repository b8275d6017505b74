"""Tests of runs that are trained again."""
