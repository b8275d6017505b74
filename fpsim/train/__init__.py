"""A trainer in low precision: data, checkpoints, and several processes whose bits are those of one."""
