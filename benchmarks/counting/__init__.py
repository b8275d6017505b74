"""Bytes and instructions for an element, counted in assembly, and the limit of the core that binds."""
