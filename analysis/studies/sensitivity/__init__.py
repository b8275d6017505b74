"""Sensitivity: what one product of one layer in low precision does to loss, outputs and gradients."""
