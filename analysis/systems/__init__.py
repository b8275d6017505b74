"""Numerics of systems: what several processes, machines and files do to the bits of a model."""
