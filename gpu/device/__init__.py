"""Arrays, memory, launches and errors on the GPU."""
