"""Reads, checks and writes the folders of runs and of sample data."""
