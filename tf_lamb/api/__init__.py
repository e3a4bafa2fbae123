"""The names, signatures and docstrings of both Kerases, and all behaviour without a framework.

Each class here has its signature, its words and its settings; each Keras adds its own base class:

    class LAMB(optimizers.LAMB, LayerwiseOptimizer): ...
"""
