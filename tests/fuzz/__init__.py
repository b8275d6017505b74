"""Random calls of the public functions: valid ones beside the oracles, and junk beside the rule of one sentence."""
