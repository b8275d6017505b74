"""Elementary functions of codes: correctly rounded by tables of exact numbers, and float32 by float64 arithmetic."""
