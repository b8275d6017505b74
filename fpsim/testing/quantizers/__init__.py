"""Quantizers as black boxes: what they should do, what they do, and the sentence that says why these differ."""
