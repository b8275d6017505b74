"""The claims of the table with their experiments, a file for each theme.

An experiment is a function that returns its results as a dict, name -> number, bool or string.
"""
