"""The data of the smallest models, written once, and steps that nobody traces."""

from support.fixtures import eager, pictures, records  # noqa: F401
