"""Holds the parts of a run: its trainer, its loop, and the actions that read it in training."""
