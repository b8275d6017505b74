"""The GPU as a device: arrays, memory, launches and errors."""
