"""The error of sums as they grow longer, beside what theory bounds it by."""
