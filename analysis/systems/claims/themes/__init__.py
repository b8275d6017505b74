"""The rows of the table of claims, a file for each theme."""
