"""A comparison of torch's ways of training on several processes with one process, bit by bit."""
