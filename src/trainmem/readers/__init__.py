"""Configurations as people have them, read into a plan with a report of every key.

In reading order: `account` (the reading, and the book of keys), one module for each format
(`deepspeed`, `accelerate`, `trainer`, `torchtitan`, `megatron` with its `megatron_keys`),
`foreign` (other tools' files, refused by name), `read` (recognises the format).
"""

from trainmem.readers.accelerate import read_accelerate
from trainmem.readers.account import Reading
from trainmem.readers.deepspeed import read_deepspeed
from trainmem.readers.megatron import read_megatron
from trainmem.readers.read import FORMATS, read_configuration
from trainmem.readers.torchtitan import read_torchtitan
from trainmem.readers.trainer import read_trainer

__all__ = [
    "FORMATS",
    "Reading",
    "read_accelerate",
    "read_configuration",
    "read_deepspeed",
    "read_megatron",
    "read_torchtitan",
    "read_trainer",
]
