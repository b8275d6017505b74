"""One matrix instruction by its integer specification."""
