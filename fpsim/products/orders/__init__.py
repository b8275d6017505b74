"""Products, sums and dot products whose additions have any order: that of a tree."""
