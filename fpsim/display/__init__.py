"""How results are shown: figures, figures in words, and the optional packages that draw and tabulate."""
