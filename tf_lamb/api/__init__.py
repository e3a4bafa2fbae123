"""What a user reads and types, the same in both Kerases, and all of it that needs no host.

Each class here has its signature, its words and its settings; each Keras adds its own base class:

    class LAMB(optimizers.LAMB, LayerwiseOptimizer): ...
"""
