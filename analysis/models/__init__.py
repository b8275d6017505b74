"""Models that run: their products recorded by hooks, tensor by tensor, while results stay as they are."""
