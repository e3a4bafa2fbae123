"""What every other folder stands on: errors, YAML, the arithmetic of a batch, the terminal."""
