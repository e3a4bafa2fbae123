"""Batch normalization in integers: of a model, the pairs, their numbers and a report."""
