"""Contains the framework-independent code that `tf_lamb.keras` and `tf_lamb.tf_keras` share.

A class here has the signature, the docstring and all behaviour that needs no framework. Each of the
two packages derives its public class of the same name from it and from a base class of its own
Keras. For example, with `lamb.LAMB` from this package:

    class LAMB(lamb.LAMB, LayerwiseOptimizer): ...
"""
