"""What is compiled: on JAX quickly, and on TensorFlow only what is about it."""

from support.fixtures import quickly_compiled, uncompiled_fits  # noqa: F401
