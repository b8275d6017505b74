"""Elementary functions, correctly rounded: from tables of exact results for codes, in float64 for float32 arrays."""
