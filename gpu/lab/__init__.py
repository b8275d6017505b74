"""Parts that experiments on a GPU share: cases, models of libraries, comparisons, reports."""
