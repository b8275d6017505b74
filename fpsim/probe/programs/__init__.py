"""Programs: orders of additions with their arithmetic, compiled to the steps of loops."""
