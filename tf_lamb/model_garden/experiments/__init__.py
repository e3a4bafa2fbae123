"""Our experiments, and what their settings may be made of."""
