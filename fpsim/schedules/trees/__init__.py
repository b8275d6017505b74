"""Trees of the additions of a schedule: construction, comparison, explanation and pictures."""
