"""Text and pictures that are at hand, for a first run."""
