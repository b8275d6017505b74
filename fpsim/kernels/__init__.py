"""CPU loops: index, load, one call to the scalar core, store."""
