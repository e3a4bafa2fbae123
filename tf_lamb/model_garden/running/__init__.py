"""A run: its trainer, its loop, and what is read while it trains."""
