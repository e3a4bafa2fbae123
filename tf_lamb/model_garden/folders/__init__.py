"""The folders of runs and of data: what is in them, whole or not at all."""
