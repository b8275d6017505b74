"""Figures, figures in words, and the optional packages that draw and tabulate results."""
