"""Finders: which learning rate, and which batch, a model and its data want."""
