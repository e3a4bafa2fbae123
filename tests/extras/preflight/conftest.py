from support.fixtures import eager, pictures, records, undistributed  # noqa: F401
