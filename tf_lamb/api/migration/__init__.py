"""Migration: state and arguments of other packages' optimizers."""
