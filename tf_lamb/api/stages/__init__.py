"""A training whose batch grows, by the public `fit` of either Keras."""
