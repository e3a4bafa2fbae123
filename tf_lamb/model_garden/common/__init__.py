"""Holds what several folders here share: errors, YAML, the parts of a batch, the terminal."""
