"""One step over time, event by event, every layer written out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainmem.transformer.architecture import Architecture
from trainmem.transformer.engine.tape import KINDS
from trainmem.transformer.peak import compiled_for, peak, stages_of
from trainmem.transformer.plan import Plan
from trainmem.transformer.sizes import Floats


@dataclass(frozen=True)
class Timeline:
    """One step over time, event by event.

    Attributes
    ----------
    kinds
        Names of the rows of `bytes_by_kind`, in stacking order.
    bytes_by_kind
        Live bytes after each event, shape (kinds, events).
    total_bytes
        Their sum, shape (events,).
    boundaries
        Index of the first event of each stretch, then the number of events.
    labels, phases
        What happens in each stretch, and its phase.
    peak_index
        Event after which the total is highest.
    explanation
        The sentence of :class:`Result`.
    """

    kinds: tuple[str, ...]
    bytes_by_kind: Floats
    total_bytes: Floats
    boundaries: NDArray[np.int64]
    labels: tuple[str, ...]
    phases: tuple[str, ...]
    peak_index: int
    explanation: str


def timeline(architecture: Architecture, plan: Plan) -> Timeline:
    """One step over time, every layer written out, on the stage with the highest peak.

    Of many accumulated micro batches two are written (three where gradients wait whole: the first,
    one like all between, the last).
    """
    answer = peak(architecture, plan)
    program, sizes = compiled_for(architecture, plan, stages_of(architecture, plan)[answer.stage])
    parts, boundaries, labels, phases, at = [], [], [], [], 0
    for segment in program.segments:
        columns = [(block.size, count, block.kind) for block, count in segment.events]
        events = np.array(columns, dtype=np.int64).reshape(-1, 3)
        low, high = segment.layers
        order = range(low, high + 1)
        for layer in order if segment.label == "forward" else reversed(order):
            boundaries.append(at)
            labels.append(f"layer {layer} {segment.label}" if low else segment.label)
            phases.append(segment.phase)
            parts.append(events)
            at += len(events)
    size, count, kind = np.concatenate(parts).T
    change = np.zeros((len(KINDS), at))
    change[kind, np.arange(at)] = count * sizes[size]
    by_kind = np.cumsum(change, axis=1)
    total = by_kind.sum(axis=0)
    return Timeline(
        kinds=KINDS,
        bytes_by_kind=by_kind,
        total_bytes=total,
        boundaries=np.array([*boundaries, at]),
        labels=tuple(labels),
        phases=tuple(phases),
        peak_index=int(np.argmax(total)),
        explanation=answer.explanation,
    )
