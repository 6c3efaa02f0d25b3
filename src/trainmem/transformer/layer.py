"""One kind of layer: its events in both directions, written once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine.graph import Graph, Value
from trainmem.transformer.engine.tape import GRADIENTS, SAVED, Event, Storage

if TYPE_CHECKING:
    from trainmem.transformer.micro import Micro

#: Tensors that the root computes and every layer uses.
CONSTANTS = ("COS", "SIN", "MASK", "IDS")


class Layer:
    """One kind of layer: its events in both directions, written once and placed as often as needed.

    Attributes
    ----------
    body, after, core
        Events of the forward pass, of the caller letting its input go, of the backward pass.
    entry, out
        The layer's input and output, born elsewhere.
    """

    def __init__(self, micro: Micro, checkpoint: bool, needs: bool = True) -> None:
        self.micro, self.checkpoint = micro, checkpoint
        writer = micro.writer
        s, tape = writer.s, writer.tape
        self.table = s.kernels.layer(s)
        self.grad_shape, unit = s.residual, writer.weight_unit
        self.entry = Value(micro.unwritten(s.residual, unit), s.residual, unit, needs)
        self.graph = micro.graph(writer.layer, save=not checkpoint, kept=s.selective)
        with tape.recording() as self.body:
            self.run(self.graph)
        self.out = self.graph.take("OUT")
        if checkpoint:
            tape.hold(self.entry.storage, SAVED)
        self.after: list[Event] = []
        self.core: list[Event] = []

    def run(self, graph: Graph) -> None:
        """Run the layer's table on its input and the constants that the root owns."""
        graph.env["X"] = self.entry
        for name in CONSTANTS:
            if value := self.micro.embed.env.get(name):
                storage = Storage(value.storage.block)
                storage.constant = name in self.micro.kept
                graph.env[name] = Value(storage, value.shape, value.unit, False)
        graph.run(self.table, returns=("OUT",))

    def write_backward(self) -> None:
        """Run the layer backward, recomputing it first under checkpointing."""
        micro, writer, tape = self.micro, self.micro.writer, self.micro.writer.tape
        graph, out, recomputed = self.graph, self.out, None
        if self.checkpoint:
            graph = micro.graph(writer.layer, recompute=True, kept=writer.s.selective)
            graph.held = self.graph.held
            with tape.recording() as events:
                self.run(graph)
                graph.clear_casts()
                out = graph.take("OUT")
                tape.drop(out.storage)
            recomputed = graph.stopped_early(events)
            constants = [graph.env[name].storage for name in CONSTANTS if name in graph.env]
            graph.keep_in_frame(
                self.entry.storage, *(tape.hold(constant, SAVED) for constant in constants)
            )
        self.entry.grad = None
        with tape.recording() as self.core:
            out.grad = micro.unwritten(self.grad_shape, writer.weight_unit)
            graph.backward(recomputed=recomputed)


def last_use(core: list[Event], later: list[Event]) -> list[Event]:
    """Return a layer's backward pass with the constants freed where it marked them unused.

    Not those that the layer whose backward pass comes `later` uses and marks too.
    """
    used = {event.block.size for event in later if not event.change}

    def marked(event: Event) -> bool:  # a gradient's mark is the collectives'
        return not event.change and event.block.kind is not GRADIENTS

    return [
        event._replace(change=0 if event.block.size in used else -1) if marked(event) else event
        for event in core
    ]
