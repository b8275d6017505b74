"""Loops that run a revealed tree."""
