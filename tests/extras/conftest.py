"""What the extras take from the rooms that they were written for."""

from support.fixtures import quickly_compiled, undistributed  # noqa: F401
