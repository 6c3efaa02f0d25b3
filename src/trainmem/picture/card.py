"""What the card may really show around a sweep: the interval from allocated to nvidia-smi."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainmem.simulation import GB, Simulation

__all__ = ["card_along", "card_of"]

Array = NDArray[np.float64]


def card_of(simulation: Simulation) -> tuple[float, float] | None:
    """Return the ends of the request's card level, GB; None under the reduced-order model."""
    case = simulation.peak_case
    if case is None:
        return None
    card = case.levels[2]
    return card.low_bytes / GB, card.high_bytes / GB


def card_along(
    simulation: Simulation,
    name: Literal["num_gpus", "seq_length"],
    octaves: Array,
    total: Array,
) -> tuple[Array, Array] | None:
    """Return the ends of the card level along an input, GB.

    Levels are not affine in the allocated bytes, for the allocator's pools have peaks of their
    own. Their share of what is allocated is smooth, though: it is computed at powers of two and
    at the request, and is interpolated between.

    Parameters
    ----------
    simulation : Simulation
        The request.
    name : {"num_gpus", "seq_length"}
        The input that varies.
    octaves, total : ndarray, shape (n,)
        Its log2, rising, and the GB allocated there.

    Returns
    -------
    tuple of ndarray, shape (n,), or None
        The lower and the upper end; None under the reduced-order model.
    """
    case, own = simulation.peak_case, card_of(simulation)
    if case is None or own is None:
        return None
    config, model = simulation.config, case.model
    need = float(simulation.components.total) / GB
    shares = {math.log2(getattr(config, name)): (own[0] / need, own[1] / need)}
    # Counts between two multiples stand for the next one, as in the sweep itself.
    step = model.gpu_multiple if name == "num_gpus" else 1
    ends = math.ceil(octaves[0] - 1e-9), math.floor(octaves[-1] + 1e-9)
    values = np.unique(_next(np.exp2(np.arange(ends[0], ends[1] + 1.0)), step))
    totals = model.components(config, **{name: values}).total
    for value, total_bytes in zip(values.tolist(), totals.tolist(), strict=True):
        try:
            card = model.levels(config.replace(**{name: int(value)}), total_bytes)[2]
        except ValueError:  # beyond what the architecture takes: the nearest share stands for it
            continue
        share = card.low_bytes / total_bytes, card.high_bytes / total_bytes
        shares.setdefault(math.log2(value), share)
    known, wanted = sorted(shares), np.log2(_next(np.exp2(octaves), step))
    low, high = (
        np.interp(wanted, known, [shares[octave][end] for octave in known]) * total
        for end in (0, 1)
    )
    return low, high


def _next(values: Array, step: int) -> Array:
    """Return the multiples of `step` from `values` on, which may be a hair more than whole."""
    if step == 1:
        return values
    return np.asarray(np.ceil(values / step - 1e-9) * step)
