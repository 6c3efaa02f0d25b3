"""The request as code to copy: the published curl command, and Python."""

from __future__ import annotations

import json
from typing import Final

from trainmem.config import TrainingConfig
from trainmem.memory_model import MemoryModel
from trainmem.request import DERIVED
from trainmem.transformer import ARCHITECTURES

__all__ = ["curl_command", "python_call"]

PUBLISHED_URL: Final = "https://www.chipfoundryservices.com/edge/training"


def curl_command(config: TrainingConfig, url: str = PUBLISHED_URL) -> str:
    """Return the published curl request, to the letter, for `config`."""
    parts = [f'"{name}":{json.dumps(_plain(value))}' for name, value in config.to_dict().items()]
    body = ",\n       ".join(",".join(parts[i:j]) for i, j in ((0, 4), (4, 7), (7, 10)))
    return f"curl -X POST {url} \\\n  -H \"Content-Type: application/json\" \\\n  -d '{{{body}}}'"


def python_call(config: TrainingConfig, model: MemoryModel | None = None) -> str:
    """Return the Python lines that repeat the simulation, with an architecture where it has one."""
    given: dict[str, str] = {}
    architecture = model.architecture if model else None
    if model is not None and architecture is not None:
        preset = ARCHITECTURES.get(architecture.name) == architecture
        given["architecture"] = repr(architecture.name) if preset else f"trainmem.{architecture!r}"
        if model.options:
            given["plan"] = repr(model.options)
        if model.gpu:
            given["gpu"] = repr(model.gpu)
    said = DERIVED if architecture is not None else ()
    given |= {n: repr(_plain(v)) for n, v in config.to_dict().items() if n not in said}
    lines = "".join(f"    {name}={value},\n" for name, value in given.items())
    return f"import trainmem\n\nsimulation = trainmem.simulate(\n{lines})\n"


def _plain(value: float) -> float:
    """Write whole floats as integers, as the published request does."""
    return int(value) if value == int(value) else value
