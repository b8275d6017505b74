"""Parts of the oracle of matrix units: exact numbers, and rows of operands."""
