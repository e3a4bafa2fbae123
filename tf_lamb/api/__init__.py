"""Contains the framework-independent part of what `tf_lamb.keras` and `tf_lamb.tf_keras` share.

A class here has the signature, the docstring and the behaviour that needs no framework. Both
packages derive a class of the same name from it, and from a class of their Keras:

    class LAMB(lamb.LAMB, LayerwiseOptimizer): ...
"""
