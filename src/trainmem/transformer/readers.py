"""The readers' address of old: they live in `trainmem.readers`, and come through the package."""

from trainmem import read_configuration

__all__ = ["read_configuration"]
