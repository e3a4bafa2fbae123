"""Rewrites a script that uses another package's LAMB, LARS or Muon, so that it uses tf_lamb's.

    python -m tf_lamb.adopt train.py                # shows what would change, and writes nothing
    python -m tf_lamb.adopt train.py --write
    python -m tf_lamb.adopt train.py --same_steps   # adds arguments that keep the old updates

The command needs libcst (`pip install libcst`), and no framework. In Python, call
`tf_lamb.adopt.script.adopt`.
"""
