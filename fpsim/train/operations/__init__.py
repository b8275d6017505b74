"""The operations of a training step beside its products, each with specified bits: the same on every machine."""

WORDS = ("specified", "torch")  # the arithmetics of a run
