"""Tests of measures: where two runs first differ."""
