"""Elementary functions of codes, correctly rounded: by tables of exact results, for float32 by float64 arithmetic."""
