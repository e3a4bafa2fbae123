"""Batch normalization in parts, and in integers."""
