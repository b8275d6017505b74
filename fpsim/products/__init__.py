"""Matrix products, sums and dot products: instructions chained over K, libraries' schedules, epilogues."""
