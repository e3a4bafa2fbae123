"""Checks the flags, settings and data of an experiment before it starts."""
