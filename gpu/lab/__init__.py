"""Parts that experiments on a GPU share: test cases, models of libraries, comparisons, reports."""
