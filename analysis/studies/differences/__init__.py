"""The difference of one model under two arithmetics: `fp.analysis.diff`."""
