"""The way in: state and arguments of other optimizers, in our words."""
