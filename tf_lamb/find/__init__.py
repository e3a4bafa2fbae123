"""The finders of a learning rate and of a batch size for a model and its data."""
