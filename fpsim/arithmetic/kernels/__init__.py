"""Compiled loops over codes: index, load, one call to the scalar core, store."""
