"""Batches and runs: whether a row's bits depend on its batch, how logits of decoders diverge, where two runs differ."""
