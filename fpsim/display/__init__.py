"""Figures, figures as text, and the optional packages that draw and tabulate results."""
