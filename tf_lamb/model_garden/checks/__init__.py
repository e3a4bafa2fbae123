"""Checks of an experiment before it starts."""
