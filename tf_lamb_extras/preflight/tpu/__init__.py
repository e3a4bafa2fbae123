"""Compiles a step with the TPU's own compiler, which needs no TPU, and reports what it says."""
