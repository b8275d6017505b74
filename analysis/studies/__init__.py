"""Studies of many tensors in several low-precision formats: measurements, recommendations, reports."""
