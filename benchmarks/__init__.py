"""Speed beside other libraries, as ratios measured in one run."""
