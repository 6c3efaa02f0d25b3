"""The GPUs there are, and the published starting points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainmem.config import ConfigError, TrainingConfig

__all__ = ["GPUS", "PRESETS", "Gpu", "Preset", "find_gpu", "preset"]


@dataclass(frozen=True)
class Preset:
    """A published starting point: a name, all ten values, and the card they belong to."""

    name: str
    config: TrainingConfig
    gpu: str = "H100 · 80 GB"

    @property
    def architecture(self) -> str:
        """Name of the architecture that it is: what stands before its cluster."""
        return self.name.partition(" ")[0]


PRESETS: Final[tuple[Preset, ...]] = (
    Preset("Llama-3-8B · 8×H100", TrainingConfig()),
    Preset("Llama-3-70B · 64×H100", TrainingConfig(70.0, 64, 80.0, 1, 8192, 80, 8192, 16.0, 3, 1)),
    Preset(
        "Llama-3-405B · 512 GPUs", TrainingConfig(405.0, 512, 80.0, 1, 8192, 126, 16384, 16.0, 3, 1)
    ),
)


def preset(name: str) -> TrainingConfig:
    """Return the config of the preset called `name`, or whose name begins so.

    Raises
    ------
    ConfigError
        Where no preset, or more than one, matches.
    """
    text = name if isinstance(name, str) else ""  # what isn't text can't be compared either
    found = [p for p in PRESETS if p.name == text] or [
        p for p in PRESETS if text and p.name.startswith(text)
    ]
    if len(found) != 1:
        raise ConfigError("preset", name, "must be one of " + ", ".join(p.name for p in PRESETS))
    return found[0].config


@dataclass(frozen=True)
class Gpu:
    """A GPU with the two numbers that its memory goes by.

    Attributes
    ----------
    name : str
        Product name.
    nominal_gb : float
        What it is sold as, 10⁹ bytes: used by the reduced-order model.
    usable_gib : float
        What `torch.cuda` reports, 2³⁰ bytes: used by the architecture-aware model.
    exact : bool
        Whether `usable_gib` was read in published logs (else it is near, not exact).
    """

    name: str
    nominal_gb: float
    usable_gib: float
    exact: bool = False

    @property
    def label(self) -> str:
        """Name and size, which together are unique: ``H100 · 80 GB``."""
        return f"{self.name} · {self.nominal_gb:g} GB"


# Smallest first: the widget's list and the "bigger card" advice read it in this order.
GPUS: Final[tuple[Gpu, ...]] = (
    Gpu("T4", 16, 14.6),
    Gpu("V100", 16, 15.8),
    Gpu("L4", 24, 22.0),
    Gpu("A10G", 24, 22.1, exact=True),
    Gpu("RTX 3090", 24, 23.6),
    Gpu("RTX 4090", 24, 23.6),
    Gpu("V100", 32, 31.7, exact=True),
    Gpu("RTX 5090", 32, 31.4),
    Gpu("A100", 40, 39.4, exact=True),
    Gpu("L40S", 48, 44.5),
    Gpu("A100", 80, 79.1, exact=True),
    Gpu("H100", 80, 79.1, exact=True),
    Gpu("H200", 141, 139.8),
    Gpu("B200", 180, 178.4),
    Gpu("MI300X", 192, 191.7),
    Gpu("MI325X", 256, 255.7),
)


def find_gpu(label: object) -> Gpu:
    """Return the card with this label (``H100 · 80 GB``); raises `ConfigError` for another."""
    for gpu in GPUS:
        if isinstance(label, str) and gpu.label == label:
            return gpu
    raise ConfigError("gpu", label, "must be one of " + ", ".join(gpu.label for gpu in GPUS))
