"""Reads, checks and writes the folders of runs and of data, whole or not at all."""
