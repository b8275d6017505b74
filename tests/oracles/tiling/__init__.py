"""Parts of the oracle of scaling: tiles, and their scales."""
