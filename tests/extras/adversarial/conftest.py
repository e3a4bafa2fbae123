from support.fixtures import eager, pictures, quickly_compiled  # noqa: F401
