"""The framework-independent base classes of the optimizers, one a file, and what they share."""
