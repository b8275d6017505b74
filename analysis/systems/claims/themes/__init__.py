"""The claims of docs/claims.md with their experiments, a file for each theme.

An experiment is a function that returns its results as a dict, name -> number, bool or string.
"""
