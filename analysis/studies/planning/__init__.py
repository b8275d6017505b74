"""Plans (fp.analysis.plan): which recipe each product of each layer follows, given a budget of bits or bytes."""
