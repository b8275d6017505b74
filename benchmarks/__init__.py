"""Speed compared with other libraries, as ratios measured in one run."""
