"""Error budgets: the error of every matrix product of a model, split by cause (fp.analysis.budget)."""
