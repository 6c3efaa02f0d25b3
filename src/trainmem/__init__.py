"""LLM training memory: does a step fit in GPU memory, and what would make it fit.

`simulate` answers from Python; `TrainingMemoryWidget` is the same, live, in a notebook.
Importing this package is cheap: names load their module when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmem import check as check
    from trainmem.answer import BadAnswer as BadAnswer
    from trainmem.answer import CannotConnect as CannotConnect
    from trainmem.answer import Comparison as Comparison
    from trainmem.answer import Refused as Refused
    from trainmem.answer import RemoteError as RemoteError
    from trainmem.answer import TimedOut as TimedOut
    from trainmem.config import FIELDS as FIELDS
    from trainmem.config import GPUS as GPUS
    from trainmem.config import PRESETS as PRESETS
    from trainmem.config import ConfigError as ConfigError
    from trainmem.config import TrainingConfig as TrainingConfig
    from trainmem.config import preset as preset
    from trainmem.fixes import Fix as Fix
    from trainmem.model import TrainingMemory as TrainingMemory
    from trainmem.picture.figure import plot as plot
    from trainmem.picture.figure import plot_timeline as plot_timeline
    from trainmem.readers import read_configuration as read_configuration
    from trainmem.remote import AsyncClient as AsyncClient
    from trainmem.remote import Client as Client
    from trainmem.simulation import Simulation as Simulation
    from trainmem.simulation import simulate as simulate
    from trainmem.transformer import ARCHITECTURES as ARCHITECTURES
    from trainmem.transformer import OPTIONS as OPTIONS
    from trainmem.transformer import STACKS as STACKS
    from trainmem.transformer import Architecture as Architecture
    from trainmem.transformer import Plan as Plan
    from trainmem.transformer import stack as stack
    from trainmem.widget import TrainingMemoryWidget as TrainingMemoryWidget

__version__ = "0.1.0"

_HOME = {
    "ARCHITECTURES": "transformer",
    "Architecture": "transformer",
    "OPTIONS": "transformer",
    "Plan": "transformer",
    "AsyncClient": "remote",
    "BadAnswer": "answer",
    "CannotConnect": "answer",
    "Client": "remote",
    "Comparison": "answer",
    "FIELDS": "config",
    "GPUS": "config",
    "PRESETS": "config",
    "ConfigError": "config",
    "Fix": "fixes",
    "Refused": "answer",
    "STACKS": "transformer",
    "RemoteError": "answer",
    "Simulation": "simulation",
    "TimedOut": "answer",
    "TrainingConfig": "config",
    "TrainingMemory": "model",
    "TrainingMemoryWidget": "widget",
    "check": "check",
    "preset": "config",
    "read_configuration": "readers",
    "simulate": "simulation",
    "stack": "transformer",
}

_UPWARD = {"plot": "picture.figure", "plot_timeline": "picture.figure"}
"""What `Simulation` reaches through here alone, above all that it imports."""

__all__ = ["__version__", *_HOME]  # noqa: PLE0604  # names, all strings


def __getattr__(name: str) -> Any:
    """Load the module that holds `name`, on first use."""
    home = _HOME.get(name) or _UPWARD.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{home}")
    value = module if name == home else getattr(module, name)  # `check` is the module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
