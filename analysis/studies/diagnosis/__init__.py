"""Diagnoses (fp.analysis.diagnose): a model's recording, budgets, sensitivity and plan, and an answer as text."""
