"""The reduced-order model: bytes per GPU of one training step, small enough for a blackboard.

Every function works on plain numbers and broadcasts over NumPy arrays (integer or float64)
alike: it is written with arithmetic only, so a Python float stays one, and one formula serves
both.

Symbols: β bytes per value (``precision_bits / 8``), P parameters, N GPUs, b micro batch,
s sequence length, h hidden size, L layers.

Sources
-------
Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", §3.1 (mixed-precision Adam) and §5 (the three stages).
Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
§4.1 (bytes that one layer saves) and §5 (recomputation).
Only the checkpointed case at 16 bits is fixed by the published answer; what the other cases
do is this project's reading, one named constant each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainmem.config import TrainingConfig
from trainmem.memory_model import MemoryModel

MASTER_BYTES: Final = 4.0
"""fp32 master weight per parameter (ZeRO §3.1); at 32 bits the weight is its own master."""

MOMENT_BYTES: Final = 8.0
"""Adam's two fp32 moments per parameter (ZeRO §3.1)."""

LAYER_BYTES: Final = 34.0
"""Bytes that one layer saves per s·b·h at 16 bits, attention scores not stored
(Korthikanti et al. §4.1: 34 + 5as/h without the second term)."""

LAYER_BITS: Final = 16.0
"""Precision at which `LAYER_BYTES` was counted; other precisions scale it."""

LIVE_LAYERS_CHECKPOINTED: Final = 2.0
"""Layers' worth alive in backward with checkpointing: the recomputed activations of one
layer and the gradients of those."""

LIVE_LAYERS_SAVED: Final = 1.0
"""The same without: only the gradients, as every layer's activations are saved already."""

CHUNK: Final = 8192
"""Configurations per pass of `totals`: a dozen float64 temporaries stay in the L2 cache."""


class Components(NamedTuple):
    """Bytes per GPU by kind; numbers or arrays of one shape."""

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any

    @property
    def states(self) -> Any:
        """Model states: weights, gradients and optimizer states, bytes."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> Any:
        """All that one GPU holds at the peak, bytes."""
        return self.weights + self.gradients + self.optimizer + self.activations


def bytes_per_param(precision_bits: Any) -> Any:
    """Return the bytes of model states per parameter: 16 at 16 bits (ZeRO §3.1)."""
    beta = precision_bits / 8
    return 2 * beta + _optimizer_bytes(precision_bits)


def _optimizer_bytes(precision_bits: Any) -> Any:
    return MOMENT_BYTES + MASTER_BYTES * (precision_bits < 32)


def components(
    *,
    model_params_b: Any,
    num_gpus: Any,
    micro_batch: Any,
    seq_length: Any,
    num_layers: Any,
    hidden_dim: Any,
    precision_bits: Any,
    zero_stage: Any,
    grad_ckpt: Any,
    gpu_memory_gb: Any = None,
) -> Components:
    """Return the bytes that one GPU needs at the peak of a step, by kind.

    Parameters
    ----------
    model_params_b : number or ndarray
        Parameters, 10⁹.
    num_gpus, micro_batch, seq_length, num_layers, hidden_dim : number or ndarray
        Counts; `seq_length` may be fractional (the published sweep is).
    precision_bits : number or ndarray
        8, 16 or 32.
    zero_stage : number or ndarray
        0 to 3 (ZeRO §5): 1 divides the optimizer states by N, 2 also the gradients,
        3 also the weights.
    grad_ckpt : number or ndarray
        1 with activation checkpointing, 0 without (Korthikanti et al. §5).
    gpu_memory_gb : optional
        Ignored: the need doesn't depend on the card. Accepted so that a whole config
        can be passed.

    Returns
    -------
    Components
        Bytes, each of the broadcast shape of its own inputs (plain floats for plain numbers).
    """
    params = model_params_b * 1e9
    beta = precision_bits / 8
    by_3, by_2, by_1 = _shards(zero_stage, num_gpus)
    weights = params * beta / by_3
    gradients = params * beta / by_2
    optimizer = params * _optimizer_bytes(precision_bits) / by_1

    # β first: the product is then a float and no integer array overflows. The sequence length,
    # which sweeps, last: the rest is then one number.
    layer_input = beta * micro_batch * hidden_dim * seq_length
    layer = layer_input * (LAYER_BYTES * 8 / LAYER_BITS)
    # A number is a switch; arrays mix both cases.
    if isinstance(grad_ckpt, np.ndarray):
        activations = np.where(
            grad_ckpt,
            _checkpointed(layer_input, layer, num_layers),
            _saved(layer, num_layers),
        )
    elif grad_ckpt:
        activations = _checkpointed(layer_input, layer, num_layers)
    else:
        activations = _saved(layer, num_layers)
    return Components(weights, gradients, optimizer, activations)


def _shards(zero_stage: Any, num_gpus: Any) -> tuple[Any, Any, Any]:
    """Return among how many GPUs the states are divided that stages 3, 2 and 1 shard: N or 1."""
    if isinstance(zero_stage, np.ndarray):
        more = num_gpus - 1
        return (
            1 + more * (zero_stage >= 3),
            1 + more * (zero_stage >= 2),
            1 + more * (zero_stage >= 1),
        )
    whole = num_gpus if zero_stage >= 3 else 1 + 0 * num_gpus  # in the shape of N
    return whole, num_gpus if zero_stage >= 2 else whole, num_gpus if zero_stage >= 1 else whole


def _checkpointed(layer_input: Any, layer: Any, num_layers: Any) -> Any:
    return layer_input * num_layers + layer * LIVE_LAYERS_CHECKPOINTED


def _saved(layer: Any, num_layers: Any) -> Any:
    return layer * num_layers + layer * LIVE_LAYERS_SAVED


class ReducedModel(MemoryModel):
    """The formulas above as a memory model for `trainmem.simulate`."""

    @property
    def description(self) -> str:
        """One line that names the model, as published."""
        return (
            "reduced-order LLM training-memory model -- model states, sharding, activations, "
            "capacity fit (educational)"
        )

    def components(self, config: TrainingConfig, **axes: Any) -> Components:
        """Return `components` of a config, some inputs replaced by numbers or arrays."""
        return components(**(config.__dict__ | axes))

    def total_by_gpus(self, config: TrainingConfig) -> Callable[[int], float]:
        """Return the total bytes of a config as a function of the GPU count.

        To the last bit that of `components`: one GPU's bytes, those that are sharded divided.
        """
        weights, gradients, optimizer, activations = self.components(config, num_gpus=1)
        stage = config.zero_stage

        def total(num_gpus: int) -> float:
            by_3, by_2, by_1 = _shards(stage, num_gpus)
            return float(weights / by_3 + gradients / by_2 + optimizer / by_1 + activations)

        return total

    def capacity_bytes(self, config: TrainingConfig) -> float:
        """Return what one GPU holds: the nominal 10⁹ bytes per GB."""
        return config.gpu_memory_gb * 1e9

    def bytes_per_param(self, config: TrainingConfig) -> float:
        """Return the bytes of model states per parameter."""
        return float(bytes_per_param(config.precision_bits))


REDUCED: Final = ReducedModel()


def totals(**inputs: ArrayLike) -> NDArray[np.float64]:
    """Return the total bytes per GPU over a broadcast grid, in bounded memory.

    Takes the keywords of `components`. The grid is walked in blocks of at most `CHUNK`
    configurations, so temporaries stay in cache whatever the grid's size, and each part is
    computed over its own inputs' axes only.

    Returns
    -------
    ndarray of float64
        Bytes, of the inputs' broadcast shape.
    """
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    out = np.empty(np.broadcast_shapes(*(array.shape for array in arrays.values())))
    for block in _blocks(out.shape):
        parts = {name: _within(array, block, out.ndim) for name, array in arrays.items()}
        out[block] = components(**parts).total
    return out


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Cut a grid along its leading axes into blocks of at most `CHUNK`."""
    size, whole = 1, len(shape)  # the axes from `whole` on aren't cut
    while whole and size * shape[whole - 1] <= CHUNK:
        whole -= 1
        size *= shape[whole]
    if not whole:
        yield ()
        return
    step = max(1, CHUNK // size)
    for index in np.ndindex(shape[: whole - 1]):
        before = tuple(slice(i, i + 1) for i in index)
        for start in range(0, shape[whole - 1], step):
            yield (*before, slice(start, start + step))


def _within(array: NDArray[Any], block: tuple[slice, ...], ndim: int) -> Any:
    """Return what of an input a block of the grid needs: a view, or a number as it is."""
    missing = ndim - array.ndim  # axes that the input lacks, the leading ones
    cuts = zip(block[missing:], array.shape, strict=False)
    return array[tuple(cut if length > 1 else slice(None) for cut, length in cuts)]
