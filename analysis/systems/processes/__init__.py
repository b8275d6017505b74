"""Whether torch's ways of training on several processes give the bits of one process, and why not where they don't."""
