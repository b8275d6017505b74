"""Recipes side by side: the gradients of one batch, and whole training runs."""
