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
    moment = simulation.moment
    if moment is None:
        return None
    card = moment.levels[2]
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
    moment, own = simulation.moment, card_of(simulation)
    if moment is None or own is None:
        return None
    config, model = simulation.config, moment.model
    need = float(simulation.components.total) / GB
    here = math.log2(getattr(config, name))
    shares = {here: (own[0] / need, own[1] / need)}
    multiple = model.gpu_multiple if name == "num_gpus" else 1
    for octave in range(math.ceil(octaves[0] - 1e-9), math.floor(octaves[-1] + 1e-9) + 1):
        gb = float(np.interp(octave, octaves, total))
        value = math.ceil(2**octave / multiple) * multiple
        try:
            card = model.levels(config.replace(**{name: value}), gb * GB)[2]
        except ValueError:  # beyond what the architecture takes: the nearest share stands for it
            continue
        shares.setdefault(octave, (card.low_bytes / GB / gb, card.high_bytes / GB / gb))
    at = sorted(shares)
    low, high = (np.interp(octaves, at, [shares[o][end] for o in at]) * total for end in (0, 1))
    return low, high
