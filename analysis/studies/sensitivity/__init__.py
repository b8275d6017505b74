"""Sensitivity (fp.analysis.sensitivity): the errors that one product of one layer in low precision causes in loss,
outputs and gradients.
"""
