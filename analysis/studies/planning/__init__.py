"""A plan: which recipe each product of each layer follows under a budget."""
