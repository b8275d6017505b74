"""Checks and identification of quantizers with a scale for each tile."""
