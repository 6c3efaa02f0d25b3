"""The two sweeps of an answer: memory per GPU along the GPU count and along the sequence length."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainmem.config import TrainingConfig
from trainmem.memory_model import MemoryModel
from trainmem.outputs import GB
from trainmem.reduced import Components

__all__ = ["SWEEP_POINTS", "Sweep", "Sweeps", "gpu_sweep", "seq_sweep", "sweep_points"]

SWEEP_POINTS: Final = 48
GPU_SWEEP: Final = (1, 2048)
SEQ_SWEEP: Final = (512, 131_072)


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare by
class Sweep:
    """Memory per GPU along one input.

    Attributes
    ----------
    x : ndarray, shape (48,)
        Where the memory was computed: whole GPU counts, or unrounded sequence lengths.
    components : Components of ndarray, shape (48,)
        Bytes per GPU by kind.
    """

    x: NDArray[Any]
    components: Components

    @property
    def total_gb(self) -> NDArray[np.float64]:
        """Memory per GPU, GB, unrounded."""
        return np.asarray(self.components.total / GB)

    def pairs(self, label: Callable[[float], float]) -> list[list[float]]:
        """Return ``[label(x), GB to 3 decimals]`` pairs, as in the API answer."""
        return [
            [label(x), round(gb, 3)]
            for x, gb in zip(self.x.tolist(), self.total_gb.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Sweeps:
    """The sweeps of an answer.

    Attributes
    ----------
    gpu_sweep, seq_sweep : Sweep
        Memory against GPU count and against sequence length, 48 points each.
    """

    gpu_sweep: Sweep = field(repr=False, compare=False)
    seq_sweep: Sweep = field(repr=False, compare=False)


def gpu_sweep(model: MemoryModel, config: TrainingConfig) -> Sweep:
    """Return the memory against GPU counts; a parallel layout stays, and dp varies."""
    counts = sweep_points(GPU_SWEEP, config.num_gpus, whole=True)
    step = model.gpu_multiple
    if step > 1:
        counts = step * np.ceil(counts / step).astype(np.int64)
    return Sweep(counts, model.components(config, num_gpus=counts))


def seq_sweep(model: MemoryModel, config: TrainingConfig) -> Sweep:
    """Return the memory against sequence lengths."""
    lengths = sweep_points(SEQ_SWEEP, config.seq_length, whole=False)
    return Sweep(lengths, model.components(config, seq_length=lengths))


@lru_cache(maxsize=256)
def sweep_points(ends: tuple[int, int], value: int, *, whole: bool) -> NDArray[Any]:
    """Return 48 geometrically spaced points between `ends`, which make room for `value`.

    The end that `value` lies beyond moves to the next power of two. Whole points are rounded;
    duplicates stay.
    """
    low, high = ends
    low = min(low, 2 ** math.floor(math.log2(value)))
    high = max(high, 2 ** math.ceil(math.log2(value)))
    points = np.geomspace(low, high, SWEEP_POINTS)
    if whole:
        points = np.round(points).astype(np.int64)
    points.flags.writeable = False  # shared by every caller
    return points
