"""Experiments on a GPU, which are commands of `python -m fpsim.gpu`: validate, bench, record, train, choices."""
