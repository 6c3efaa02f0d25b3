"""The walk through a training step: micro batches forward and backward, then the optimizer.

Layers of one model are alike, so a layer is run once and its events are placed as often as needed;
the middle layers of a deep model are one segment with a count.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmem.transformer import blocks, heads
from trainmem.transformer.ops import OPS
from trainmem.transformer.replay import (
    GRADIENTS,
    LOGITS,
    SAVED,
    TEMPORARY,
    Event,
    Graph,
    Storage,
    Value,
    net,
)
from trainmem.transformer.sharding import Progress, Sharding
from trainmem.transformer.states import Ledger, Parameters, Structure


def walk(structure: Structure) -> Ledger:
    """Write one step: what exists before it, its micro batches, the optimizer."""
    ledger = Ledger(structure)
    sharding = Sharding(ledger)
    ledger.states()
    for number in range(structure.micros):
        first, last = number == 0, number == structure.micros - 1
        progress = Progress(
            last=last,
            sync=last or not structure.delayed,
            whole_exists=structure.delayed and not first,
            shards_exist=structure.keep or (not structure.delayed and not first),
        )
        micro = Micro(ledger, sharding, progress, adds=structure.keep or not first)
        micro.forward()
        micro.backward()
    ledger.optimizer()
    return ledger


class Micro:
    """One micro batch: its blocks' graphs, from forward to backward.

    Parameters
    ----------
    ledger, sharding
        Where events go, and the collectives.
    progress
        Where this micro batch stands in the step.
    adds
        Whether gradients exist already that new ones are added to (without FSDP).
    """

    def __init__(self, ledger: Ledger, sharding: Sharding, progress: Progress, adds: bool) -> None:
        self.ledger, self.sharding, self.progress, self.adds = ledger, sharding, progress, adds
        self.pending: Storage | None = None  # the head weight's gradient, being summed
        self.arrived = 0
        self.made: tuple[Storage, Storage]  # the fused head's gradients
        self.labels: Value  # the shifted labels, of the chunked head

    def graph(self, parameters: Parameters, save: bool = True, recompute: bool = False) -> Graph:
        """Make a block's mini-autograd, which hands weight gradients to `collect`."""
        ledger = self.ledger
        graph = Graph(
            ledger.tape, OPS, ledger.precision, parameters, save=save, recompute=recompute
        )
        graph.collect = self.collect
        return graph

    def fake(self, dims: str, unit: int) -> Storage:
        """Return a storage whose birth is written elsewhere (by the block before)."""
        with self.ledger.tape.recording():
            return self.ledger.tape.alloc(dims, unit, TEMPORARY)

    def collect(self, name: str, g: Storage) -> None:
        """Take a weight's gradient.

        The head's waits for those of all its uses (chunks, a tied embedding), summed. Where a
        gradient of the same kind exists already, the new one is added to it and freed; FSDP's whole
        gradients stay until `post_backward`.
        """
        s, tape = self.ledger.s, self.ledger.tape
        if name == "head.weight" or (s.tied and name == "embed"):
            self.arrived += 1
            if self.pending is not None:
                total = tape.alloc("Vh", self.ledger.weight_unit, GRADIENTS)
                tape.drop(self.pending)
                tape.drop(g)
                g = total
            self.pending = g
            if self.arrived < heads.contributions(self):
                return
        if s.fsdp:
            adds = self.progress.whole_exists and not self.sharding.accumulates_whole
        else:
            adds = self.adds
        if adds:
            tape.drop(g)

    # ---- forward ----
    def forward(self) -> None:
        """Embedding, layers, head and loss."""
        self.forward_embedding()
        body, after = self.forward_layer()
        ledger, sharding, s = self.ledger, self.sharding, self.ledger.s
        for low, high in spread(s.num_layers, 1, 1):
            sharding.pre_forward(ledger.layer)
            ledger.tape.events += body
            sharding.post_forward(ledger.layer)
            if low > 1 or s.gpt2:
                ledger.tape.events += after
            ledger.close("fwd", "forward", high - low + 1, (low, high))
        self.forward_norm()
        if not s.gpt2:  # the embedding's output was held by the model's own variable
            ledger.tape.events += after
        self.forward_loss()

    def forward_embedding(self) -> None:
        """Token ids to the first layer's input, and the constants every layer uses."""
        ledger, s = self.ledger, self.ledger.s
        self.sharding.pre_forward(ledger.embed_group)
        self.embed = self.graph(ledger.named)
        table = blocks.embedding(s)
        self.embed.run(table[:1])
        if s.split:
            self.sharding.post_forward(ledger.embed_group)
        self.embed.run(table[1:])
        self.embedded = self.embed.take("X")
        ledger.close("fwd", "embedding")

    def forward_layer(self) -> tuple[list[Event], list[Event]]:
        """Run one layer: its events, and those when the caller lets its input go."""
        ledger, s, tape = self.ledger, self.ledger.s, self.ledger.tape
        self.table = blocks.gpt2_layer(s) if s.gpt2 else blocks.llama_layer(s)
        entry = self.fake("bsh", ledger.weight_unit)
        self.entry = Value(entry, "bsh", ledger.weight_unit)
        self.layer = self.graph(ledger.layer, save=not s.checkpoint)
        with tape.recording() as body:
            self.run_layer(self.layer)
        self.out = self.layer.take("OUT")
        if s.checkpoint:
            tape.hold(entry, SAVED)
        for value in (self.out, self.embedded):  # every layer's output is the next one's input
            value.storage.birth[2] = entry.birth[2]
        with tape.recording() as after:
            tape.drop(entry)
        return body, after

    def run_layer(self, graph: Graph) -> None:
        """Run the layer's table on its input and the constants that the root owns."""
        graph.env["X"] = self.entry
        for name in CONSTANTS:
            if value := self.embed.env.get(name):
                storage = Storage(value.storage.birth)
                storage.constant = name in self.kept
                graph.env[name] = Value(storage, value.dims, value.unit, False)
        graph.run(self.table)

    @property
    def kept(self) -> tuple[str, ...]:
        """Constants that live into the backward pass: rotary saves two, checkpoints hold all."""
        if not self.ledger.s.checkpoint:
            return ("COS", "SIN")
        return ("MASK",) if self.ledger.s.gpt2 else CONSTANTS  # GPT-2's embedding saved IDS

    def forward_norm(self) -> None:
        """Run the final norm; the model's variables go with its return."""
        ledger = self.ledger
        if ledger.s.split:
            self.sharding.pre_forward(ledger.head_group)
        self.head = self.graph(ledger.named)
        self.final = Value(self.fake("bsh", ledger.weight_unit), "bsh", ledger.weight_unit)
        self.final.storage.birth[2] = self.entry.storage.birth[2]
        self.head.env["X"] = self.final
        self.head.run(blocks.final_norm(ledger.s))
        self.head.forget("X")
        for name in set(self.embed.env) - set(self.kept):
            self.embed.forget(name)
        self.hidden = self.head.env["Y"]
        self.logits_at = len(self.head.nodes)

    def forward_loss(self) -> None:
        """Head and loss; the root is given up, then the logits, then autocast's weights."""
        ledger, head, s = self.ledger, self.head, self.ledger.s
        if s.loss_head == "transformers":
            head.run(blocks.LOGITS)
            self.logits_at = len(head.nodes)
        elif s.loss_head == "chunked":
            heads.chunks_forward(self)
        else:
            heads.fused_forward(self)
        if s.split:
            self.sharding.post_forward(ledger.head_group)
        if s.loss_head == "transformers":
            head.run(blocks.cross_entropy(s))
        head.forget("Y")
        if not s.split:
            self.sharding.post_forward(ledger.head_group)
        self.sharding.free_buffer()
        if "LOGITS" in head.env:
            head.forget("LOGITS")
        with ledger.tape.recording() as casts:
            self.layer.clear_casts()
        ledger.tape.events += net(casts, s.num_layers)
        head.clear_casts()
        ledger.close("fwd", "final norm, logits and loss")

    # ---- backward ----
    def backward(self) -> None:
        """Loss, head, layers from the last, embedding, root."""
        ledger, sharding, s = self.ledger, self.sharding, self.ledger.s
        seed = ledger.tape.alloc("", 4, TEMPORARY)
        self.backward_loss(seed)
        core = self.backward_layer()
        for low, high in reversed(list(spread(s.num_layers, 2, 2))):
            following = ledger.layer if low > 1 else ledger.embed_group if s.split else None
            sharding.pre_backward(ledger.layer, following)
            ledger.tape.events += core if low > 1 else last_use(core)
            sharding.post_backward(ledger.layer, self.progress)
            ledger.close(self.phase("layers"), "backward", high - low + 1, (low, high))
        if s.split:
            sharding.pre_backward(ledger.embed_group, None)
        self.embedded.grad = self.fake("bsh", ledger.weight_unit)
        self.embed.backward()
        sharding.post_backward(ledger.embed_group, self.progress)
        sharding.free_reduced()
        ledger.tape.drop(seed)
        self.head.forget("LOSS")
        ledger.close(self.phase("layers"), "embedding backward and last reduction")

    def backward_loss(self, seed: Storage) -> None:
        """Loss, head and final norm."""
        ledger, sharding, s = self.ledger, self.sharding, self.ledger.s
        if not s.split:
            sharding.pre_backward(ledger.head_group, ledger.layer, gathered=False)
        if s.loss_head == "transformers":
            self.head.env["LOSS"].grad = ledger.tape.hold(seed)
        self.head.backward(upto=self.logits_at)
        if s.split:
            sharding.pre_backward(ledger.head_group, ledger.layer, gathered=False)
        if s.loss_head == "chunked":
            heads.chunks_backward(self)
        elif s.loss_head == "fused":
            heads.fused_backward(self)
        self.head.backward()
        if s.split:
            sharding.post_backward(ledger.head_group, self.progress)
        # The loss ends where the last logits-sized tensor dies; without any, at once.
        events = ledger.tape.events
        ends = [i for i, e in enumerate(events) if e[2] == LOGITS and e[1] < 0]
        cut = max(ends, default=0) + 1
        ledger.tape.events = events[:cut]
        ledger.close(self.phase("loss"), "loss backward")
        ledger.tape.events = events[cut:]
        ledger.close(self.phase("layers"), "head and final norm backward")

    def phase(self, name: str) -> str:
        """Return the phase: backward passes before the last micro batch's are one of their own."""
        return name if self.progress.last else "other"

    def backward_layer(self) -> list[Event]:
        """Run one layer backward, recomputing it first under checkpointing."""
        ledger, tape = self.ledger, self.ledger.tape
        graph, out, recomputed = self.layer, self.out, None
        if ledger.s.checkpoint:
            graph = self.graph(ledger.layer, recompute=True)
            with tape.recording() as events:
                self.run_layer(graph)
                graph.clear_casts()
                out = graph.take("OUT")
                tape.drop(out.storage)
            recomputed = graph.stopped_early(events)
            constants = [graph.env[name].storage for name in CONSTANTS if name in graph.env]
            graph.keep_in_frame(
                self.entry.storage, *(tape.hold(constant, SAVED) for constant in constants)
            )
        self.entry.grad = None
        with tape.recording() as core:
            out.grad = self.fake("bsh", ledger.weight_unit)
            graph.backward(recomputed=recomputed)
        return core


def last_use(core: list[Event]) -> list[Event]:
    """Return a layer's backward pass with the constants freed where it marked them unused."""
    return [[size, count or -1, kind] for size, count, kind in core]


#: Tensors that the root computes and every layer uses.
CONSTANTS = ("COS", "SIN", "MASK", "IDS")


def spread(layers: int, first: int, last: int) -> Iterable[tuple[int, int]]:
    """Split layers 1..n into the first few, the middle as one range, and the last few."""
    ends = min(first, layers)
    tail = max(layers - last, ends)
    for i in range(1, ends + 1):
        yield (i, i)
    if tail > ends:
        yield (ends + 1, tail)
    for i in range(tail + 1, layers + 1):
        yield (i, i)
