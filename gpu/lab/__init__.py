"""What experiments on a GPU share: cases, models, judgement, reports."""
