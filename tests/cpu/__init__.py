"""Instructions of the processor: run where they are, replayed from recordings everywhere."""
