"""Training through low precision: recipes as data, one visible loop, and what it kept and lost."""
