"""Sensitivity: the errors that one product of one layer in low precision makes of loss, outputs and gradients."""
