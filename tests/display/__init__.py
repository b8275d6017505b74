"""Tests of how results are shown, and of the packages that this needs."""
