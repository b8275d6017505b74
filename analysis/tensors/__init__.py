"""Tensors from arrays in memory, files or recordings, as the analyses read them: by name and in chunks."""
