"""What a multiplication by a power of two saves from underflow: one scale, and policies that choose it."""
