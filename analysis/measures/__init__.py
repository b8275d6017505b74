"""The rounding error and the exponent range of one array."""
