"""The tensors that studies read, from arrays in memory, files or recordings."""
