"""LLM training memory: does a step fit in GPU memory, and what would make it fit.

`simulate` answers from Python; `TrainingMemoryWidget` is the same, live, in a notebook.
Importing this package is cheap: names load their module when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmem.cards import GPUS as GPUS
    from trainmem.cards import PRESETS as PRESETS
    from trainmem.cards import preset as preset
    from trainmem.config import FIELDS as FIELDS
    from trainmem.config import ConfigError as ConfigError
    from trainmem.config import TrainingConfig as TrainingConfig
    from trainmem.course import check as check
    from trainmem.fixes import Fix as Fix
    from trainmem.http.answer import BadAnswer as BadAnswer
    from trainmem.http.answer import CannotConnect as CannotConnect
    from trainmem.http.answer import Comparison as Comparison
    from trainmem.http.answer import Refused as Refused
    from trainmem.http.answer import RemoteError as RemoteError
    from trainmem.http.answer import TimedOut as TimedOut
    from trainmem.http.client import AsyncClient as AsyncClient
    from trainmem.http.client import Client as Client
    from trainmem.picture.figure import plot as plot
    from trainmem.picture.figure import plot_timeline as plot_timeline
    from trainmem.readers import read_configuration as read_configuration
    from trainmem.simulate_step import simulate as simulate
    from trainmem.simulation import Simulation as Simulation
    from trainmem.transformer import ARCHITECTURES as ARCHITECTURES
    from trainmem.transformer import OPTIONS as OPTIONS
    from trainmem.transformer import STACKS as STACKS
    from trainmem.transformer import Architecture as Architecture
    from trainmem.transformer import Plan as Plan
    from trainmem.transformer import stack as stack
    from trainmem.widget.shell import TrainingMemoryWidget as TrainingMemoryWidget
    from trainmem.widget.traits import TrainingMemory as TrainingMemory

__version__ = "0.1.0"

_HOME = {
    "ARCHITECTURES": "transformer",
    "Architecture": "transformer",
    "OPTIONS": "transformer",
    "Plan": "transformer",
    "AsyncClient": "http.client",
    "BadAnswer": "http.answer",
    "CannotConnect": "http.answer",
    "Client": "http.client",
    "Comparison": "http.answer",
    "FIELDS": "config",
    "GPUS": "cards",
    "PRESETS": "cards",
    "ConfigError": "config",
    "Fix": "fixes",
    "Refused": "http.answer",
    "STACKS": "transformer",
    "RemoteError": "http.answer",
    "Simulation": "simulation",
    "TimedOut": "http.answer",
    "TrainingConfig": "config",
    "TrainingMemory": "widget.traits",
    "TrainingMemoryWidget": "widget.shell",
    "check": "course.check",
    "preset": "cards",
    "read_configuration": "readers",
    "simulate": "simulate_step",
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
    value = module if home.endswith(f".{name}") else getattr(module, name)  # `check` is the module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
