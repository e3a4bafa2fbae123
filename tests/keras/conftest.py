"""On JAX, what a room asks of XLA."""

from support.fixtures import quickly_compiled, undistributed  # noqa: F401
