"""Rewrites a script of another LAMB, LARS or Muon for this package.

    python -m tf_lamb.adopt train.py                # shows what would change, and writes nothing
    python -m tf_lamb.adopt train.py --write
    python -m tf_lamb.adopt train.py --same_steps   # with the arguments that keep the old steps

It needs `pip install ".[adopt]"`, and no framework. In Python it is
`tf_lamb.adopt.script.adopt`.
"""
