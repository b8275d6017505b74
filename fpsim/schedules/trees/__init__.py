"""What a schedule comes to: trees, differences, explanations, pictures."""
