"""Operations of a training step other than layers' products, with specified bits: the same on every machine."""

WORDS = ("specified", "torch")  # the arithmetics of a run
