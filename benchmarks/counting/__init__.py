"""What an element costs in bytes and instructions, counted in assembly, and which limit binds it."""
