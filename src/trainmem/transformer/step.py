"""The walk through a training step: what exists before it, its micro batches, the optimizer."""

from __future__ import annotations

from trainmem.transformer.engine.tape import SAVED, Event, net
from trainmem.transformer.micro import Micro
from trainmem.transformer.stacks.collectives import Collectives, Progress
from trainmem.transformer.structure import Structure
from trainmem.transformer.writer import StepWriter


def walk(structure: Structure) -> StepWriter:
    """Write one step: what exists before it, its micro batches, the optimizer."""
    writer = StepWriter(structure)
    collectives = structure.framework.collectives(writer)
    writer.at_rest()
    waiting = in_flight(writer, collectives)
    for number in range(structure.micros):
        first, last = number == 0, number == structure.micros - 1
        progress = Progress(
            last=last,
            sync=last or not structure.delayed,
            whole_exists=structure.delayed and not first,
            shards_exist=structure.keep or (not structure.delayed and not first),
        )
        collectives.begin(progress)
        micro = Micro(writer, collectives, progress, adds=structure.keep or not first)
        micro.forward()
        micro.backward()
    if waiting:
        writer.tape.events = net(waiting, -structure.waiting)
        writer.close("other", "the other micro batches' backward passes")
    writer.optimizer_step()
    return writer


def in_flight(writer: StepWriter, collectives: Collectives) -> list[Event]:
    """Write what waiting micro batches of a pipeline stage have saved; returns one's part.

    Their forward passes are those of the micro batch at work, which comes after them, but for the
    head: its backward pass follows at once.
    """
    s = writer.s
    if not s.waiting:
        return []
    before, writer.segments = writer.segments, []
    progress = Progress(last=True, sync=True, whole_exists=False, shards_exist=True)
    Micro(writer, collectives, progress, adds=True, head=False).forward()
    events = [e for part in writer.segments for e in net(part.events, part.times)]
    saved = net([e for e in events if e.block.kind is SAVED], 1)
    writer.segments = before
    writer.tape.events = net(saved, s.waiting)
    writer.close("fwd", f"activations of {s.waiting} more in flight")
    return saved
