"""Sizes of products as part of a black box: models of several lengths, and shapes at which the kernel changes."""
