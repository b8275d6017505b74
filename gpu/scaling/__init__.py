"""Arrays of codes with one scale per tile on the GPU."""
