"""fp.probe: orders, names, models and refusals."""
