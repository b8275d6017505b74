"""The specified operations of training."""
