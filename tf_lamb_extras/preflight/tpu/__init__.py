"""Compiles a training step with the TPU's own compiler, which needs no TPU, and reports on it.

The report has the memory and the minimum time of the step.
"""
