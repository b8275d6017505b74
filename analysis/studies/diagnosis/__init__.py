"""Diagnoses (fp.analysis.diagnose): a model's recording, error budgets, sensitivity and plan, and an answer as text."""
