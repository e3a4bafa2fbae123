"""Kept for tools that call it; the metadata is in pyproject.toml."""

from setuptools import setup

setup()
