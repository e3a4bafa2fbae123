"""Contains `migrate`, which continues training from the state of another optimizer."""
