"""Parts that the training loop calls by name: ranks, reductions, delayed scales, the controller, measurements."""
