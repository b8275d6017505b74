"""The GPU as a device: arrays, memory, kernel launches and errors."""
