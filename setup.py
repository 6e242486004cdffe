"""Everything is said in pyproject.toml; this file is for tools that still ask for setup.py."""

from setuptools import setup

setup()
