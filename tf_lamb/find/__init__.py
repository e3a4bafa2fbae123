"""Searches a learning rate (`find_rate`) and a batch size (`find_batch`) for a model and data."""
