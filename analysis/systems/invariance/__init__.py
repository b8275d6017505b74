"""Tests of invariance: whether a result depends on its batch, how two decoders diverge, where two runs differ."""
