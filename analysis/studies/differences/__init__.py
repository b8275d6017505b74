"""The comparison of one model's bits under two arithmetics: `fp.analysis.diff`."""
