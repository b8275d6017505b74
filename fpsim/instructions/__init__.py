"""Matrix instructions, emulated one by one from their integer specification."""
