"""Elementwise operations on codes, each result rounded once, and the array class with operators."""
