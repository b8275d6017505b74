"""Matrix instructions as data, one table row per instruction, with its source and evidence."""
