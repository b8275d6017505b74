"""Comparisons of recipes: by the gradients of one batch, and by whole training runs."""
