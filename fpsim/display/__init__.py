"""Figures, tables, pages and progress bars, and the optional packages that draw them."""
