"""Figures of a training as it runs: lines in a terminal, TensorBoard's event files, and a page."""
