"""Sensitivity (fp.analysis.sensitivity): the errors that one product in low precision causes in a model."""
