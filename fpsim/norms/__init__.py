"""Softmax and norms along an axis, whose every intermediate format, order and rounding has a name."""
