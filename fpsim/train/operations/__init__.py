"""The operations of a training step besides layers' products, each with specified bits: the same on every machine."""

WORDS = ("specified", "torch")  # the arithmetics of a run
