"""Products, sums and dot products whose additions follow any order, given as a tree."""
