"""Checks and names what quantizers with a scale for each tile do."""
