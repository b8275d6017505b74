"""The error of sums as they grow longer, with the bounds of theory."""
