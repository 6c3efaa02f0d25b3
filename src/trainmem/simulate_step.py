"""`simulate`: a request in any of its forms, checked and answered.

The module has another name than the function: a package's submodule hides a name like its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack

from trainmem.cards import find_gpu
from trainmem.config import ConfigError, Inputs, TrainingConfig, check_names, takes
from trainmem.memory_model import MemoryModel, SimpleModel, completed
from trainmem.reduced import REDUCED
from trainmem.simulation import Simulation

if TYPE_CHECKING:
    from trainmem.transformer import Architecture, Plan

__all__ = ["resolve", "simulate"]

KEYWORDS: Final = ("config", "model", "architecture", "plan", "gpu")
"""What `simulate` takes beside the ten inputs."""


@takes(Inputs)
def simulate(
    config: TrainingConfig | None = None,
    *,
    model: MemoryModel | SimpleModel = REDUCED,
    architecture: Architecture | str | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
    gpu: str | None = None,
    **changes: Unpack[Inputs],
) -> Simulation:
    """Simulate one training step; with no arguments, the published reference request.

    Parameters
    ----------
    config : TrainingConfig, optional
        The request; the defaults where omitted.
    model : MemoryModel, optional
        The memory model; the reduced-order one where omitted. A class that inherits nothing may
        answer too, if it has the four members without a default.
    architecture : Architecture or str, optional
        Answer with the architecture-aware model instead, for this architecture or the preset of
        that name (`trainmem.ARCHITECTURES`). It gives `model_params_b`, `num_layers` and
        `hidden_dim`: those of `config` are replaced.
    plan : Plan or dict, optional
        How the step is run, with an architecture: the options that differ from the defaults
        (`trainmem.OPTIONS`), or a whole `Plan`, whose GPUs, batch, length, sharding, precision
        and checkpointing count where no `config` is given.
    gpu : str, optional
        A card, by its label in `trainmem.GPUS` such as ``"H100 · 80 GB"``: its nominal memory, or
        with an architecture the memory that `torch.cuda` reports (84.9 × 10⁹ bytes). Where none
        is named, with an architecture a preset's config (none: the first) has the preset's card,
        and any other `gpu_memory_gb` counts as it is.
    **changes
        Fields that replace those of `config`.

    Returns
    -------
    Simulation

    Raises
    ------
    ConfigError
        For an unknown name or a bad value, a field that contradicts the architecture, the plan or
        the card, or a combination that the architecture-aware model doesn't cover.
    TypeError
        Where `config` isn't a `TrainingConfig`, or where both a model and an architecture are
        given.
    """
    start = time.perf_counter()
    check_names(changes, KEYWORDS)
    if architecture is not None or plan is not None or gpu is not None:
        if model is not REDUCED:
            raise TypeError("give a model, or an architecture with plan and card, but not both")
        config, model = _chosen(config, changes, architecture, plan, gpu)
    else:
        config = resolve(config, changes)
    return Simulation.of(completed(model), config, start=start)


def _chosen(
    config: TrainingConfig | None,
    changes: Mapping[str, object],
    architecture: Architecture | str | None,
    plan: Plan | Mapping[str, Any] | None,
    gpu: str | None,
) -> tuple[TrainingConfig, MemoryModel]:
    """Return the config and the model that an architecture, a plan and a card ask for."""
    from trainmem import request

    if config is not None and not isinstance(config, TrainingConfig):
        resolve(config, changes)  # says what is wrong with it
    if architecture is not None:
        return request.resolve(config, changes, architecture, plan, gpu)
    if plan is not None:
        raise ConfigError("plan", plan, "it needs an architecture")
    return resolve(config, request.with_memory(changes, find_gpu(gpu))), REDUCED


def resolve(config: TrainingConfig | None, changes: Mapping[str, object]) -> TrainingConfig:
    """Return `config`, or the defaults, with `changes`; raises as `simulate` does."""
    if config is None:
        return TrainingConfig.from_mapping(changes)
    if not isinstance(config, TrainingConfig):
        raise TypeError(
            f"config must be a TrainingConfig, not {type(config).__name__}; "
            "pass a dict as simulate(**values)"
        )
    return config.replace(**changes) if changes else config
