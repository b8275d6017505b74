"""Quantised checkpoints written in the layouts that libraries read (fp.torch.export)."""
