"""Softmax and norms along an axis, in which callers choose every intermediate format, rounding and order of sums."""
