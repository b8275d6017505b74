"""A diagnosis: recording, budgets, sensitivity and plan of a model, and what they come to in words."""
