"""Studies: many tensors in several formats, in one report."""
