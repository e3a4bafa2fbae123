"""Contains the signatures and docstrings of both Kerases, and behaviour without a framework.

Each class here has its signature, its docstring and its settings; each Keras adds its base class:

    class LAMB(lamb.LAMB, LayerwiseOptimizer): ...
"""
