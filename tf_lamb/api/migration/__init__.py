"""Continues the state and arguments of other packages' optimizers."""
