"""The watcher of a model while it is recorded: forward passes, products, weights and scales."""
