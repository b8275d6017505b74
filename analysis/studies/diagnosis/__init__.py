"""A diagnosis: recording, budgets, sensitivity and plan of a model, and an answer as text."""
