"""Asks the TPU's own compiler, which runs where there is no TPU, about a step."""
