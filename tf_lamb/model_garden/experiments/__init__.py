"""Defines this package's experiments for Model Garden, and the settings of their optimizers."""
