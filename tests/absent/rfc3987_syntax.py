"""Stands in for the package of this name, which is not to be loaded (see `tests/conftest.py`)."""

raise ImportError("left out of the tests")
