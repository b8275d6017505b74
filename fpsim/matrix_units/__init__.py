"""Matrix instructions as data: a row each, with its source and evidence."""
