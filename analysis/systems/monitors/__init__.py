"""Monitors of a training while it runs: lines in a terminal, TensorBoard's event files, and an HTML page."""
