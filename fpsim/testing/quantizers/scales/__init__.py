"""Checks and identifies quantizers with a scale for each tile."""
