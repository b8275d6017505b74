"""One model under two arithmetics: `fp.analysis.diff`."""
