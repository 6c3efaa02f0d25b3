"""The walk through a training step: states, micro batches forward and backward, optimizer.

One function per stage, in the order things happen. Layers of one model are alike, so a layer is run
once and its events are placed as often as needed; the middle layers of a deep model are one segment
with a count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainmem.transformer import blocks, heads
from trainmem.transformer.ops import OPS
from trainmem.transformer.replay import (
    GATHERED,
    GRADIENTS,
    LOGITS,
    OPTIMIZER,
    SAVED,
    TEMPORARY,
    WEIGHTS,
    Event,
    Graph,
    Parameter,
    Precision,
    SizeKey,
    Storage,
    Tape,
    Value,
    net,
)

Parameters = dict[str, Parameter]

#: Bytes per element by precision: weights at rest, weights as computed with, gradients at rest.
UNITS = {
    "mixed": (4, 2, 4),
    "amp": (4, 4, 4),
    "bf16_master": (2, 2, 2),
    "bf16": (2, 2, 2),
    "fp32": (4, 4, 4),
}


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything that decides the order of events, and nothing else."""

    family: str
    num_layers: int
    tied: bool
    grouped: bool
    layer: tuple[tuple[str, Parameter], ...]
    root: tuple[tuple[str, Parameter], ...]
    alone: bool
    sharding: str
    precision: str
    optimizer: str
    attention: str
    loss_head: str
    chunks: int
    checkpoint: bool
    micros: int
    no_sync: bool
    keep: bool
    split: bool
    reduce_unit: int
    dropout: bool

    @property
    def fsdp(self) -> bool:
        """Whether FSDP2 shards the states."""
        return self.sharding.startswith("zero")


@dataclass(slots=True)
class Segment:
    """A stretch of events, repeated `times`, with the phase and what happens in it."""

    phase: str
    label: str
    events: list[Event]
    times: int = 1
    layers: tuple[int, int] = (0, 0)


class Step:
    """Writes the events of one step for a structure, as segments."""

    def __init__(self, structure: Structure) -> None:
        self.s = s = structure
        self.tape = Tape()
        self.segments: list[Segment] = []
        self.rest_unit, self.weight_unit, self.grad_unit = UNITS[s.precision]
        self.precision = Precision(self.weight_unit, s.precision == "amp")
        self.layer, self.root = dict(s.layer), dict(s.root)
        if s.tied:
            self.root["head.weight"] = self.root["embed"]
        self.reduce_unit = s.reduce_unit if s.precision == "mixed" else self.weight_unit
        self.buffer: SizeKey | None = None  # the all-gather buffer to free at the next copy-out
        self.reduced: SizeKey | None = None  # the last reduce-scatter input
        self.states()
        grads_exist = s.keep
        for micro in range(s.micros):
            last = micro == s.micros - 1
            self.micro(grads_exist, last, first=micro == 0)
            grads_exist = True
        self.optimizer()

    # ---- writing events ----
    def emit(self, key: SizeKey, count: int, kind: int) -> None:
        """Allocate (count > 0) or free (count < 0) `count` blocks of size `key`."""
        size = self.tape.sizes.setdefault(key, len(self.tape.sizes))
        self.tape.events.append([size, count, kind])

    def close(
        self, phase: str, label: str, times: int = 1, layers: tuple[int, int] = (0, 0)
    ) -> None:
        """Turn the events written since the last segment into one."""
        self.segments.append(Segment(phase, label, self.tape.events, times, layers))
        self.tape.events = []

    # ---- states ----
    def states(self) -> None:
        """What is there before the step: weights, optimizer, kept gradients, buffers, tokens."""
        s = self.s
        for parameters, count in ((self.layer, s.num_layers), (dict(s.root), 1)):
            for p in parameters.values():
                self.emit(self.at_rest((p,), self.rest_unit), count, WEIGHTS)
                for unit in self.optimizer_units():
                    key = self.at_rest((p,), unit) if unit else ("", "", 4)
                    self.emit(key, count, OPTIMIZER)
                if s.sharding == "zero1":
                    self.emit(("gather", (p,), self.weight_unit), count, GATHERED)
                if s.sharding == "ddp":
                    self.emit(("", "".join(p), self.grad_unit), count, GRADIENTS)
        if s.keep:
            self.gradients_at_rest(1)
        if s.family != "gpt2":
            self.emit(("", "d", 2), 2, WEIGHTS)
        self.emit(("", "bs", 8), 1, TEMPORARY)
        self.close("states", "weights, optimizer states and tokens")

    def at_rest(self, parameters: tuple[Parameter, ...], unit: float) -> SizeKey:
        """Size of a parameter (or its optimizer state) outside gathering."""
        if self.s.fsdp:
            return ("shard", parameters, unit)
        ((rows, cols),) = parameters
        return ("", rows + cols, unit)

    def optimizer_units(self) -> tuple[float, ...]:
        """Bytes an element of each optimizer state; 0 stands for one scalar on the GPU."""
        master = (4,) if self.s.precision == "bf16_master" else ()
        unit = 4 if master else self.rest_unit
        return (
            master
            + {
                "adamw": (unit, unit, 0),
                "adamw_foreach": (unit, unit),
                "adamw_forloop": (unit, unit),
                "sgd": (),
                "sgd_momentum": (unit,),
                "adam8bit": (1, 1, 4 / 256, 4 / 256),  # and an fp32 scale per block of 256
            }[self.s.optimizer]
        )

    def gradients_at_rest(self, sign: int) -> None:
        """Allocate or free the gradients as they stay between backward and optimizer."""
        s = self.s
        if s.fsdp:
            for group, count in self.groups():
                key: SizeKey = ("shard", tuple(group.values()), self.grad_unit)
                self.emit(key, sign * count, GRADIENTS)
        else:
            for parameters, count in ((self.layer, s.num_layers), (dict(s.root), 1)):
                for rows, cols in parameters.values():
                    self.emit(("", rows + cols, self.grad_unit), sign * count, GRADIENTS)

    def groups(self) -> list[tuple[Parameters, int]]:
        """FSDP's groups of parameters, and how many of each."""
        root = dict(self.s.root)
        if not self.s.split:
            return [(self.layer, self.s.num_layers), (root, 1)]
        embed = {"embed": root.pop("embed")}
        return [(self.layer, self.s.num_layers), (embed, 1), (root, 1)]

    # ---- FSDP ----
    def gather(self, group: Parameters) -> None:
        """All-gather: a cast copy of the shards (freed), and the buffer for everybody's."""
        if not self.s.alone:
            key = tuple(group.values())
            if self.rest_unit != self.weight_unit:
                self.emit(("shard", key, self.weight_unit), 1, GATHERED)
            self.emit(("gather", key, self.weight_unit), 1, GATHERED)
            if self.rest_unit != self.weight_unit:
                self.emit(("shard", key, self.weight_unit), -1, GATHERED)

    def unshard(self, group: Parameters, forward: bool) -> None:
        """Copy the gathered buffer out into parameters; then a buffer can be freed.

        In forward it is the previous group's (it overlaps with the next gather), in backward its own.
        """
        unit = self.weight_unit
        if self.s.alone:
            cast = self.rest_unit != unit
            previous: SizeKey | None = None
            for p in group.values():
                if cast:
                    self.emit(("shard", (p,), unit), 1, GATHERED)
                if previous:
                    self.emit(previous, -1, GATHERED)
                self.emit(("gather", (p,), unit), 1, GATHERED)
                previous = ("shard", (p,), unit) if cast else None
            if previous:
                self.emit(previous, -1, GATHERED)
            return
        for p in group.values():
            self.emit(("gather", (p,), unit), 1, GATHERED)
        own: SizeKey = ("gather", tuple(group.values()), unit)
        if not forward:
            self.emit(own, -1, GATHERED)
        else:
            self.free_buffer()
            self.buffer = own

    def free_buffer(self) -> None:
        """Free the all-gather buffer that forward kept."""
        if self.buffer:
            self.emit(self.buffer, -1, GATHERED)
            self.buffer = None

    def reshard(self, group: Parameters) -> None:
        """Free the gathered parameters."""
        for p in group.values():
            self.emit(("gather", (p,), self.weight_unit), -1, GATHERED)

    def reduce(self, group: Parameters, unit: int, add: bool) -> None:
        """Reduce-scatter whole gradients of `unit` bytes into the shard's gradient.

        The last gradient lives as long as the loop variable that holds it.
        """
        params = tuple(group.values())
        self.free_reduced()
        self.reduced = ("gather", params, self.reduce_unit)
        self.emit(self.reduced, 1, GRADIENTS)
        whole: list[SizeKey] = [("", rows + cols, unit) for rows, cols in params]
        held = [] if self.s.alone else [whole.pop()]
        for key in whole:
            self.emit(key, -1, GRADIENTS)
        shard: SizeKey = ("shard", params, self.reduce_unit)
        self.emit(shard, 1, GRADIENTS)
        if self.reduce_unit != self.grad_unit:
            self.emit(("shard", params, self.grad_unit), 1, GRADIENTS)
            self.emit(shard, -1, GRADIENTS)
        for key in held:
            self.emit(key, -1, GRADIENTS)
        if add:
            self.emit(("shard", params, self.grad_unit), -1, GRADIENTS)

    def free_reduced(self) -> None:
        """Free the last reduce-scatter input."""
        if self.reduced:
            self.emit(self.reduced, -1, GRADIENTS)
            self.reduced = None

    def post_backward(self, group: Parameters, micro: Micro) -> None:
        """What FSDP does with a group's gradients when its backward pass is done."""
        s = self.s
        whole = self.weight_unit
        converts = self.reduce_unit != whole and (s.no_sync or s.sharding == "zero1")
        if converts and micro.whole_exists:  # add to the accumulated ones, free the new ones
            for rows, cols in group.values():
                self.emit(("", rows + cols, whole), -1, GRADIENTS)
        if s.sharding != "zero1":
            self.reshard(group)
        if not micro.sync:
            if converts and not micro.whole_exists:
                for rows, cols in group.values():
                    self.emit(("", rows + cols, self.reduce_unit), 1, GRADIENTS)
                    self.emit(("", rows + cols, whole), -1, GRADIENTS)
            return
        unit = self.reduce_unit if converts and micro.whole_exists else whole
        self.reduce(group, unit, micro.shards_exist)

    # ---- one micro batch ----
    def micro(self, grads_exist: bool, last: bool, first: bool) -> None:
        """Forward and backward pass of one micro batch."""
        s = self.s
        delayed = s.no_sync or s.sharding == "zero1"
        micro = Micro(
            step=self,
            sync=last or not delayed,
            whole_exists=delayed and not first,
            shards_exist=s.keep or (not delayed and not first),
            accumulate=grads_exist,
            last=last,
        )
        micro.forward()
        micro.backward()

    # ---- optimizer ----
    def optimizer(self) -> None:
        """Temporaries of the step, then the gradients go (unless kept)."""
        s = self.s
        root = dict(s.root)
        first = [root.pop(name) for name in ("embed", "position") if name in root]
        layer = list(self.layer.values())
        one_by_one = [*first, *layer * min(s.num_layers, 2), *root.values()]
        if s.precision == "bf16_master":  # an fp32 copy of one gradient at a time
            for p in one_by_one:
                self.emit(self.at_rest((p,), 4), 1, TEMPORARY)
                self.emit(self.at_rest((p,), 4), -1, TEMPORARY)
        if s.optimizer == "adamw_forloop":  # sqrt and its quotient, which lives to the next one's
            previous: SizeKey | None = None
            for p in one_by_one:
                key = self.at_rest((p,), self.rest_unit)
                self.emit(key, 2, TEMPORARY)
                self.emit(key, -1, TEMPORARY)
                if previous:
                    self.emit(previous, -1, TEMPORARY)
                previous = key
            if previous:
                self.emit(previous, -1, TEMPORARY)
        if s.optimizer == "adamw_foreach":  # the square roots of all second moments at once
            for sign in (1, -1):
                for parameters, count in ((self.layer, s.num_layers), (dict(s.root), 1)):
                    for p in parameters.values():
                        self.emit(self.at_rest((p,), self.rest_unit), sign * count, TEMPORARY)
        if not s.keep:
            self.gradients_at_rest(-1)
        self.close("opt", "optimizer step")


@dataclass
class Micro:
    """One micro batch: what exists already, and the blocks between forward and backward."""

    step: Step
    sync: bool
    whole_exists: bool
    shards_exist: bool
    accumulate: bool
    last: bool
    pending: Storage | None = None
    arrived: int = 0
    made: tuple[Storage, Storage] | None = None

    def graph(self, parameters: Parameters, save: bool = True, recompute: bool = False) -> Graph:
        """A block's mini-autograd, collecting weight gradients as this micro batch does."""
        step = self.step
        graph = Graph(step.tape, OPS, step.precision, parameters, save, recompute)
        graph.collect = self.collect
        return graph

    def collect(self, name: str, g: Storage) -> None:
        """A weight's gradient is ready.

        The head's waits for those of all its uses (chunks, a tied embedding), summed. Where a gradient of the same kind exists already, the
        new one is added to it and freed; FSDP's whole gradients stay until `post_backward`.
        """
        step, s, tape = self.step, self.step.s, self.step.tape
        if name == "head.weight" or (s.tied and name == "embed"):
            self.arrived += 1
            if self.pending is not None:
                total = tape.alloc("Vh", step.weight_unit, GRADIENTS)
                tape.drop(self.pending)
                tape.drop(g)
                g = total
            self.pending = g
            if self.arrived < heads.contributions(self):
                return
        if s.fsdp:
            converts = step.reduce_unit != step.weight_unit
            adds = self.whole_exists and not converts
        else:
            adds = self.accumulate
        if adds:
            tape.drop(g)

    # ---- forward ----
    def forward(self) -> None:
        """Embedding, layers, head and loss."""
        step, s, tape = self.step, self.step.s, self.step.tape
        gathers = s.fsdp and s.sharding != "zero1"
        releases = s.sharding == "zero3"
        if gathers:
            step.gather(self.embed_group)
            step.unshard(self.embed_group, forward=True)
        self.embed = embed = self.graph(step.root)
        table = blocks.embedding(self.gpt2, s.attention == "eager", s.dropout)
        embed.run(table[:1])
        if s.split and releases:
            step.reshard(self.embed_group)
        embed.run(table[1:])
        self.embedded = embed.take("X")
        step.close("fwd", "embedding")

        body, after = self.layer_forward()
        for low, high in spread(s.num_layers, 1, 1):
            if gathers:
                step.gather(step.layer)
                step.unshard(step.layer, forward=True)
            tape.events += body
            if releases:
                step.reshard(step.layer)
            if low > 1 or self.gpt2:
                tape.events += after
            step.close("fwd", "forward", high - low + 1, (low, high))

        if s.split and gathers:
            step.gather(self.head_group)
            step.unshard(self.head_group, forward=True)
        self.head = head = self.graph(step.root)
        self.final = Value(self.fake("bsh", step.weight_unit), "bsh", step.weight_unit)
        assert self.final.storage is not None and self.entry.storage is not None
        self.final.storage.birth[2] = self.entry.storage.birth[2]
        head.env["X"] = self.final
        head.run(blocks.final_norm(self.gpt2))
        head.forget("X")
        for name in list(embed.env):
            if name not in self.kept:
                embed.forget(name)
        if not self.gpt2:  # the embedding's output was held by the model's own variable
            tape.events += after
        self.hidden = head.env["Y"]
        self.logits_at = len(head.nodes)
        if s.loss_head == "transformers":
            head.run(blocks.LOSS[:1])
            self.logits_at = len(head.nodes)
        elif s.loss_head == "chunked":
            heads.chunks_forward(self)
        else:
            heads.fused_forward(self)
        if s.split and releases:
            step.reshard(self.head_group)
        if s.loss_head == "transformers":
            head.run(blocks.LOSS[1:])
        head.forget("Y")
        if releases and not s.split:
            step.reshard(self.head_group)
        step.free_buffer()
        if "LOGITS" in head.env:
            head.forget("LOGITS")
        self.end_autocast()
        step.close("fwd", "final norm, logits and loss")

    def layer_forward(self) -> tuple[list[Event], list[Event]]:
        """Run one layer: its events, and those when the caller lets its input go."""
        step, s, tape = self.step, self.step.s, self.step.tape
        self.table = (
            blocks.gpt2_layer(self.kernel, s.dropout)
            if self.gpt2
            else blocks.llama_layer(self.kernel, s.grouped, s.family == "qwen3")
        )
        entry = self.fake("bsh", step.weight_unit)
        self.entry = Value(entry, "bsh", step.weight_unit)
        self.inner = self.graph(step.layer, save=not s.checkpoint)
        with tape.recording() as body:
            self.run_layer(self.inner)
        self.out = self.inner.take("OUT")
        if s.checkpoint:
            tape.hold(entry, SAVED)
        for value in (self.out, self.embedded):  # every layer's output is the next one's input
            assert value.storage is not None
            value.storage.birth[2] = entry.birth[2]
        with tape.recording() as after:
            tape.drop(entry)
        return body, after

    def run_layer(self, graph: Graph) -> None:
        """Run the layer's table on its input and the constants that the root owns."""
        graph.env["X"] = self.entry
        for name in CONSTANTS:
            if name in self.embed.env:
                value = self.embed.env[name]
                assert value.storage is not None
                storage = Storage(value.storage.size, value.storage.birth)
                storage.constant = name in self.kept
                graph.env[name] = Value(storage, value.dims, value.unit, False)
        graph.run(self.table)

    def end_autocast(self) -> None:
        """Autocast's cached weights go, those of every layer."""
        tape = self.step.tape
        with tape.recording() as casts:
            self.inner.clear_casts()
        tape.events += net(casts, self.step.s.num_layers)
        self.head.clear_casts()

    @property
    def gpt2(self) -> bool:
        """Whether the family is GPT-2; the others share one table."""
        return self.step.s.family == "gpt2"

    @property
    def kept(self) -> tuple[str, ...]:
        """Constants that live into the backward pass: what rotary saved, all under checkpointing."""
        return CONSTANTS if self.step.s.checkpoint else ("COS", "SIN")

    @property
    def embed_group(self) -> Parameters:
        """The FSDP group that holds the embedding."""
        root = dict(self.step.s.root)
        return {"embed": root["embed"]} if self.step.s.split else root

    @property
    def head_group(self) -> Parameters:
        """The FSDP group that holds the final norm and the head."""
        root = dict(self.step.s.root)
        if self.step.s.split:
            del root["embed"]
        return root

    @property
    def kernel(self) -> str:
        """Attention kernel: flash has no fp32, and no fused fp32 kernel has grouped heads."""
        s = self.step.s
        if s.attention == "flash" and s.precision == "fp32":
            return "math" if s.grouped else "efficient"
        return s.attention

    def fake(self, dims: str, unit: int) -> Storage:
        """A storage whose birth is written elsewhere (by the block before)."""
        with self.step.tape.recording():
            return self.step.tape.alloc(dims, unit, TEMPORARY)

    # ---- backward ----
    def backward(self) -> None:
        """Loss, head, layers from the last, embedding, root."""
        step, s, tape = self.step, self.step.s, self.step.tape
        regathers = s.sharding == "zero3"
        seed = tape.alloc("", 4, TEMPORARY)
        loss = self.head.env["LOSS"]
        if s.loss_head == "transformers":
            loss.grad = tape.hold(seed)
        if regathers and not s.split:
            step.gather(self.head_group)
            self.pre_backward(self.head_group, step.layer)
        self.head.backward(upto=self.logits_at)
        if regathers and s.split:
            step.gather(self.head_group)
            self.pre_backward(self.head_group, step.layer)
        if s.loss_head == "chunked":
            heads.chunks_backward(self)
        elif s.loss_head == "fused":
            heads.fused_backward(self)
        self.head.backward()
        if s.split:
            step.post_backward(self.head_group, self)
        self.close_loss()

        core = self.layer_backward()
        for low, high in reversed(list(spread(s.num_layers, 2, 2))):
            if regathers:
                following = step.layer if low > 1 else self.embed_group if s.split else None
                self.pre_backward(step.layer, following)
            tape.events += core if low > 1 else last_use(core)
            if s.fsdp:
                step.post_backward(step.layer, self)
            step.close(self.phase("layers"), "backward", high - low + 1, (low, high))

        if regathers and s.split:
            self.pre_backward(self.embed_group, None)
        self.embedded.grad = self.fake("bsh", step.weight_unit)
        self.embed.backward()
        if s.fsdp:
            step.post_backward(self.embed_group, self)
            step.free_reduced()
        tape.drop(seed)
        self.head.forget("LOSS")
        step.close(self.phase("layers"), "embedding backward and last reduction")

    def pre_backward(self, group: Parameters, following: Parameters | None) -> None:
        """FSDP before a group's backward pass: unshard it, prefetch the next one's gather."""
        self.step.unshard(group, forward=False)
        if following is not None:
            self.step.gather(following)

    def phase(self, name: str) -> str:
        """Backward passes before the last micro batch's are a phase of their own."""
        return name if self.last else "other"

    def close_loss(self) -> None:
        """End the loss where the last logits-sized tensor dies; without any, it is over at once."""
        step = self.step
        events = step.tape.events
        ends = [i for i, e in enumerate(events) if e[2] == LOGITS and e[1] < 0]
        cut = max(ends, default=0) + 1
        step.tape.events = events[:cut]
        step.close(self.phase("loss"), "loss backward")
        step.tape.events = events[cut:]
        step.close(self.phase("layers"), "head and final norm backward")

    def layer_backward(self) -> list[Event]:
        """Run one layer backward, recomputing it first under checkpointing."""
        step, s, tape = self.step, self.step.s, self.step.tape
        graph, out, before = self.inner, self.out, None
        if s.checkpoint:
            graph = self.graph(step.layer, recompute=True)
            assert self.entry.storage is not None
            with tape.recording() as events:
                self.run_layer(graph)
                graph.clear_casts()
                out = graph.take("OUT")
                assert out.storage is not None
                tape.drop(out.storage)
            # Recomputation stops at the last saved tensor; the frame's variables go with it.
            cut = graph.last_save
            recomputed = events[:cut] + net(events[cut:], 1)
            frame = next(node for node in graph.nodes if node.saved)
            frame.saved.append(self.entry.storage)
            for name in CONSTANTS:
                if (constant := graph.env.get(name)) and constant.storage:
                    frame.saved.append(tape.hold(constant.storage, SAVED))

            def before() -> None:
                tape.events += recomputed

        self.entry.grad = None
        with tape.recording() as core:
            out.grad = self.fake("bsh", step.weight_unit)
            graph.backward(before=before)
        return core


def last_use(core: list[Event]) -> list[Event]:
    """A layer's backward pass with the constants freed where it marked them unused."""
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
