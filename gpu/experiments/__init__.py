"""Experiments on a GPU: validate, bench, record."""
