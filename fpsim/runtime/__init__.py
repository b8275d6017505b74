"""How loops run on this machine: compiled, cut into pieces, on several threads."""
