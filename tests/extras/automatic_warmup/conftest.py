from support.fixtures import eager, records  # noqa: F401
