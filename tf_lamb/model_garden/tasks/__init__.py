"""Model Garden's tasks, with what large batches add to them."""
