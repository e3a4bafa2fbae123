"""Computes how long training to a target loss takes at each batch size, and what it costs.

The module `steps` has the number of steps, `growth` its extrapolation to longer runs, and `costs`
the time and the price.
"""
