"""Holds the parts of a run: the trainer, the training loop, and the actions after each loop.

A loop is `trainer.steps_per_loop` training steps, between which Orbit calls the actions.
"""
