from support.fixtures import quickly_compiled, undistributed  # noqa: F401
