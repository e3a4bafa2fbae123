"""Training on adversarial examples of older weights (ConAdv)."""
