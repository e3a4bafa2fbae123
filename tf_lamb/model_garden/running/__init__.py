"""Holds the parts of a run: the trainer, the training loop, and the actions after each loop."""
