"""The error of sums against their number of terms, with the bounds that theory predicts."""
