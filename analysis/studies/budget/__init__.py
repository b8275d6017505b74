"""The error of every product of a model, by cause: fp.analysis.budget."""
