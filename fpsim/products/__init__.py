"""Matrix products, sums and dot products: chains of instructions, schedules, epilogues."""
