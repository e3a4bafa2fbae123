"""Checks an experiment before it starts."""
