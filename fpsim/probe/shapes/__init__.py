"""Sizes of products as part of a black box: models for several lengths, and shapes at which the kernel changes."""
