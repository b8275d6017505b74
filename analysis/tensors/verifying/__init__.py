"""What contradicts the layout of a quantised checkpoint."""
