"""The tensors that studies read: arrays, files, recordings."""
