"""Batches and runs: whether a row's bits depend on its batch, how decoding parts, and where two runs differ."""
