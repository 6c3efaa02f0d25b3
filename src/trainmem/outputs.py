"""The 17 published outputs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

__all__ = ["GB", "OUTPUT_NAMES", "Outputs"]

GB: Final = 1e9
"""Bytes of a gigabyte, here and everywhere."""


@dataclass(frozen=True)
class Outputs:
    """The 17 published outputs, in the published order; each says its unit and meaning.

    GB are 10⁹ bytes to 3 decimals.
    """

    model_states_unsharded_gb: float
    """Weights, gradients and optimizer states of the whole model, each once, GB."""
    model_states_per_gpu_gb: float
    """The same as one GPU holds it, GB; with an architecture what is alive of it at the peak, with
    the copies made of it then."""
    activations_per_gpu_gb: float
    """Activations alive at the peak on one GPU, GB."""
    per_gpu_total_gb: float
    """All that one GPU needs, GB."""
    gpu_capacity_gb: float
    """Memory of one GPU, GB."""
    utilization_percent: float
    """Need over capacity, percent to 1 decimal."""
    fits: bool
    """Whether the need is at most the capacity (judged before rounding)."""
    bytes_per_param: float
    """Bytes of model states per parameter."""
    weights_per_gpu_gb: float
    """Weights on one GPU, GB."""
    grads_per_gpu_gb: float
    """Gradients on one GPU, GB."""
    optimizer_per_gpu_gb: float
    """Optimizer states on one GPU, GB."""
    min_gpus_to_fit: int | None
    """Smallest GPU count that fits; None where none does (see `min_gpus_reason`)."""
    aggregate_cluster_gb: float
    """Need of all GPUs together, GB to 1 decimal."""
    global_batch: int
    """Sequences per step over all GPUs."""
    zero_stage: int
    """The request's ZeRO stage."""
    checkpointing: bool
    """Whether the request checkpoints activations."""
    verdict: str
    """What dominates, what frees memory here, and the stage, in words."""

    def outputs(self) -> dict[str, Any]:
        """Return the 17 outputs as a dict in the published order."""
        return {name: getattr(self, name) for name in OUTPUT_NAMES}


OUTPUT_NAMES: Final = tuple(f.name for f in fields(Outputs))
