"""Runs that are trained again: digests of each step, runs as JSON, and the first operation that differs."""
