"""Trees of the additions of a schedule, their differences, explanations and pictures."""
