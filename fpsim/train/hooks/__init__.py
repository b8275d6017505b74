"""What a training loop calls by name beside the mathematics of a step: a file for each noun."""
