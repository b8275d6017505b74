"""Claims of the literature about low precision: each with its source, an experiment, numbers and a verdict."""
