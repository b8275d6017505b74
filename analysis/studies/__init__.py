"""Many tensors, one report."""
