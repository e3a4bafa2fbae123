"""Holds what the other folders use: errors, YAML, the arithmetic of a batch, the terminal."""
