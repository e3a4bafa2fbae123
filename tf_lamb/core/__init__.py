"""The mathematics: numbers and arrays only, with the standard library alone.

Nothing here imports a framework, so every line can be run, tested and checked against its paper
with NumPy, or with no array library at all.
"""
