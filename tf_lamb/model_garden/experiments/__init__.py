"""Defines this package's experiments, and the settings of their optimizers and schedules."""
