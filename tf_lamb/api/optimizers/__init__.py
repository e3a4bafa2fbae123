"""The optimizers, one a file: signature, docstring, rule, slots and settings."""
