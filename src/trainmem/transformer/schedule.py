"""The walk through a training step: micro batches forward and backward, then the optimizer.

Layers of one model are alike, so a layer is run once and its events are placed as often as needed;
the middle layers of a deep model are one segment with a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from trainmem.transformer import blocks, heads, kernels
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
from trainmem.transformer.sharding import Progress, Sharding, sharding_of
from trainmem.transformer.states import Ledger, Parameters, Structure


def walk(structure: Structure) -> Ledger:
    """Write one step: what exists before it, its micro batches, the optimizer."""
    ledger = Ledger(structure)
    sharding = sharding_of(ledger)
    ledger.states()
    waiting = in_flight(ledger, sharding)
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
    if waiting:
        ledger.tape.events = net(waiting, -structure.waiting)
        ledger.close("other", "the other micro batches' backward passes")
    ledger.optimizer()
    return ledger


def in_flight(ledger: Ledger, sharding: Sharding) -> list[Event]:
    """Write what waiting micro batches of a pipeline stage have saved; returns one's part.

    Their forward passes are those of the micro batch at work, which comes after them, but for the
    head: its backward pass follows at once.
    """
    s = ledger.s
    if not s.waiting:
        return []
    before, ledger.segments = ledger.segments, []
    progress = Progress(last=True, sync=True, whole_exists=False, shards_exist=True)
    Micro(ledger, sharding, progress, adds=True, head=False).forward()
    events = [e for part in ledger.segments for e in net(part.events, part.times)]
    saved = net([e for e in events if e[2] == SAVED], 1)
    ledger.segments = before
    ledger.tape.events = net(saved, s.waiting)
    ledger.close("fwd", f"activations of {s.waiting} more in flight")
    return saved


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
    head
        Whether the head follows the layers; by default on the last stage.
    """

    def __init__(
        self,
        ledger: Ledger,
        sharding: Sharding,
        progress: Progress,
        adds: bool,
        head: bool | None = None,
    ) -> None:
        self.has_head = ledger.s.last if head is None else head
        self.ledger, self.sharding, self.progress, self.adds = ledger, sharding, progress, adds
        self.pending: dict[str, Storage] = {}  # gradients of the head, being summed
        self.arrived: Counter[str] = Counter()
        self.leaf: Value | None = None  # looked-up tokens that want a gradient
        self.made: tuple[Storage, Storage | None]  # the fused head's gradients
        self.labels: Value  # the shifted labels, of the chunked head

    def graph(
        self,
        parameters: Parameters,
        save: bool = True,
        recompute: bool = False,
        kept: bool = False,
    ) -> Graph:
        """Make a block's mini-autograd, which hands weight gradients to `collect`."""
        ledger = self.ledger
        graph = Graph(
            ledger.tape,
            OPS,
            ledger.precision,
            parameters,
            save=save,
            recompute=recompute,
            kept=kernels.selected(ledger.s) if kept else frozenset(),
        )
        graph.collect, graph.trains = self.collect, ledger.s.trains
        graph.adapter_unit = ledger.s.adapter_unit
        graph.adapted = bool(ledger.s.adapted)
        graph.quantized = ledger.s.quantization != "none"
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
        if s.framework == "megatron":  # added to the main gradient
            tape.drop(g)
            return
        if s.tied and name == "embed":
            name = "head.weight"
        uses = heads.contributions(self, name)
        if uses > 1:
            self.arrived[name] += 1
            if name in self.pending:
                unit = s.adapter_unit if ".lora_" in name else self.ledger.weight_unit
                total = tape.alloc("".join(self.ledger.named[name]), unit, GRADIENTS)
                tape.drop(self.pending[name])
                tape.drop(g)
                g = total
            self.pending[name] = g
            if self.arrived[name] < uses:
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
        ledger, sharding, s = self.ledger, self.sharding, self.ledger.s
        self.kinds = self.kinds_of_layers()
        self.link()
        after = self.kinds[-1].after
        for low, high in self.spread(1, 1):
            layer = self.kind(low)
            sharding.pre_forward(ledger.layer)
            ledger.tape.events += layer.body
            sharding.post_forward(ledger.layer)
            if low > 1 or s.gpt2:
                ledger.tape.events += layer.after
            ledger.close("fwd", "forward", high - low + 1, (low, high))
        if self.has_head:
            self.forward_norm()
        if not s.gpt2 and not self.held_input:  # it was held by the model's own variable
            ledger.tape.events += after
        if self.has_head:
            self.forward_loss()
        else:
            out = self.kinds[0].out
            ledger.emit(("", s.residual, ledger.weight_unit), -1, out.storage.birth[2])
            if not s.split:
                sharding.post_forward(ledger.head_group)
            sharding.free_buffer()
            for name in set(self.embed.env) - set(self.kept):
                self.embed.forget(name)
            ledger.close("fwd", "output sent to the next stage")

    def kind(self, number: int) -> Layer:
        """Return the kind of a layer, by its number."""
        if self.ledger.s.every_2nd:  # the second, the fourth, ...
            return self.kinds[number % len(self.kinds)]
        return self.kinds[-1 if number == 1 else 0]

    def kinds_of_layers(self) -> list[Layer]:
        """Make the kinds of layers that there are; the last of them is the first layer's.

        One kind; or every second layer is checkpointed; or, where only adapters are trained, no
        gradient goes to the first layer's input.
        """
        s = self.ledger.s
        if s.every_2nd:
            return [Layer(self, True), Layer(self, False)][s.num_layers == 1 :]
        like_others = Layer(self, s.checkpoint)
        if s.checkpoint or self.embedded.needs or not s.traced:  # tables are of a mean layer
            return [like_others]
        return [like_others, Layer(self, False, needs=False)]

    def spread(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return ranges of like layers: each by itself where kinds alternate."""
        layers = self.ledger.s.num_layers
        return list(spread(layers, layers if self.ledger.s.every_2nd else first, last))

    def link(self) -> None:
        """Give the tensor between two layers one kind: every output is the next one's input."""
        ends = [v for layer in self.kinds for v in (layer.entry, layer.out)]
        saved = any(v.storage.birth[2] == SAVED for v in ends)
        for value in (*ends, self.embedded):
            value.storage.birth[2] = SAVED if saved else self.kinds[0].entry.storage.birth[2]
        for layer in self.kinds:
            with self.ledger.tape.recording() as layer.after:
                self.ledger.tape.drop(layer.entry.storage)

    def forward_embedding(self) -> None:
        """Token ids to the first layer's input, and the constants every layer uses."""
        ledger, s = self.ledger, self.ledger.s
        self.sharding.pre_forward(ledger.embed_group)
        self.embed = self.graph(ledger.named)
        table = blocks.embedding(s) if s.traced and s.first else kernels.embedding(s)
        lookup = 2 if s.sp and s.first else 1
        self.embed.run(table[:lookup])
        if s.gpt2 and s.adapted and s.checkpoint:
            self.hold_leaf()
        if s.split:
            self.sharding.post_forward(ledger.embed_group)
        self.embed.run(table[lookup:])
        self.embedded = self.embed.take("X")
        ledger.close("fwd", "embedding")

    @property
    def held_input(self) -> bool:
        """Whether the first layer's input is such a leaf, which its layer may not keep."""
        s = self.ledger.s
        return bool(s.adapted) and s.every_2nd and s.traced and not s.gpt2

    def hold_leaf(self) -> None:
        """Make GPT-2's looked-up tokens a leaf that wants a gradient, alive until the graph dies.

        So peft does for checkpointing over a frozen embedding (`enable_input_require_grads`).
        Elsewhere they are the first layer's input, which the checkpoint keeps anyway.
        """
        self.leaf = self.embed.env["TOKENS"]
        self.leaf.needs = True
        self.ledger.tape.hold(self.leaf.storage, SAVED)

    @property
    def kept(self) -> tuple[str, ...]:
        """Constants that live into the backward pass: rotary saves two, checkpoints hold all."""
        s = self.ledger.s
        if not s.checkpoint or (s.every_2nd and s.num_layers == 1):
            return ("COS", "SIN")
        # GPT-2's embedding saved IDS, if its table of positions is trained.
        return ("MASK",) if s.gpt2 and s.trains("position") else CONSTANTS

    def forward_norm(self) -> None:
        """Run the final norm; the model's variables go with its return."""
        ledger, s = self.ledger, self.ledger.s
        if s.split:
            self.sharding.pre_forward(ledger.head_group)
        self.head = self.graph(ledger.named)
        self.final = Value(
            self.fake(s.residual, ledger.weight_unit), s.residual, ledger.weight_unit
        )
        self.final.storage.birth[2] = self.kinds[0].entry.storage.birth[2]
        self.head.env["X"] = self.final
        self.head.run(blocks.final_norm(s) if s.traced else kernels.final_norm(s))
        self.head.forget("X")
        for name in set(self.embed.env) - set(self.kept):
            self.embed.forget(name)
        self.hidden = self.head.env["Y"]
        self.logits_at = len(self.head.nodes)

    def forward_loss(self) -> None:
        """Head and loss; the root is given up, then the logits, then autocast's weights."""
        ledger, head, s = self.ledger, self.head, self.ledger.s
        if s.loss_head == "chunked":
            heads.chunks_forward(self)
        elif s.loss_head == "fused":
            heads.fused_forward(self)
        else:
            head.run(kernels.logits(s))
            self.logits_at = len(head.nodes)
        if s.pieces:  # the loss is the caller's, outside the model
            head.forget("Y")
        if self.apart:
            self.sharding.post_forward(ledger.head_group)
        if s.pieces:
            self.sharding.free_buffer()
        self.run_loss()
        if not s.pieces:
            head.forget("Y")
        if not self.apart:
            self.sharding.post_forward(ledger.head_group)
        self.sharding.free_buffer()
        for name in list(head.env):
            if name.startswith("LOGITS") or (name == "OUTPUT" and s.loss_head == "held"):
                head.forget(name)
        self.in_every_layer(lambda layer: None if layer.checkpoint else layer.graph.drop_cache())
        self.in_every_layer(lambda layer: layer.graph.clear_casts())
        head.clear_casts()
        ledger.close("fwd", "final norm, logits and loss")

    def in_every_layer(self, frees: Callable[[Layer], None]) -> None:
        """Write what each kind of layer frees, as often as there are such layers."""
        tape, layers = self.ledger.tape, self.ledger.s.num_layers
        for layer in self.kinds:
            with tape.recording() as events:
                frees(layer)
            times = sum(self.kind(i) is layer for i in range(1, layers + 1))
            tape.events += net(events, times)

    def run_loss(self) -> None:
        """Run what comes between logits and loss."""
        head, s = self.head, self.ledger.s
        if s.loss_head == "transformers":
            head.run(blocks.cross_entropy(s))
        elif s.loss_head in ("held", "returned"):
            head.run(blocks.held_logits(s))
            head.forget("LOGITS")
            head.run(blocks.held_cross_entropy(s))
        elif s.pieces:
            head.run(blocks.piece_losses(s))
        elif s.loss_head in kernels.LOSSES:
            head.run(kernels.LOSSES[s.loss_head])

    # ---- backward ----
    def backward(self) -> None:
        """Loss, head, layers from the last, embedding, root."""
        ledger, sharding, s = self.ledger, self.sharding, self.ledger.s
        if self.has_head:
            seed = ledger.tape.alloc("", 4, TEMPORARY)
            self.backward_loss(seed)
        else:
            ledger.tape.alloc(s.residual, ledger.weight_unit, TEMPORARY)
            group = {} if s.split else ledger.head_group
            sharding.pre_backward(group, ledger.layer, gathered=False)
            ledger.close(self.phase("layers"), "gradient received from the next stage")
        for layer in self.kinds:
            layer.write_backward()
        for low, high in reversed(self.spread(2, 2)):
            core = self.kind(low).core
            following = ledger.layer if low > 1 else ledger.embed_group if s.split else None
            sharding.pre_backward(ledger.layer, following)
            if low == 1 or (low == 2 and s.every_2nd):
                core = last_use(core, later=self.kind(1).core if low == 2 else [])
            ledger.tape.events += core
            sharding.post_backward(ledger.layer, self.progress)
            ledger.close(self.phase("layers"), "backward", high - low + 1, (low, high))
        if s.split:
            sharding.pre_backward(ledger.embed_group, None)
        if self.kind(1).entry.needs:
            grad = self.fake(s.residual, ledger.weight_unit)
            if s.first and (s.trains("embed") or self.leaf):
                self.embedded.grad = grad
                self.embed.backward()
            else:  # sent to the stage before, or of no use
                ledger.tape.drop(grad)
        sharding.post_backward(ledger.embed_group, self.progress)
        sharding.free_reduced()
        if self.has_head:
            ledger.tape.drop(seed)
            for name in list(self.head.env):  # the loss, and the output if the caller kept it
                self.head.forget(name)
        self.in_every_layer(lambda layer: layer.graph.drop_cache())
        self.free_graph()
        ledger.close(self.phase("layers"), "embedding backward and last reduction")

    def free_graph(self) -> None:
        """Let the graph's leaves go, which die with the loss."""
        ledger = self.ledger
        if self.leaf:
            ledger.tape.drop(self.leaf.gradient)
            ledger.tape.drop(self.leaf.storage)
        if self.held_input:
            ledger.tape.events += self.kinds[-1].after

    @property
    def apart(self) -> bool:
        """Whether the head's weights come and go apart from the loss."""
        return self.ledger.s.split or self.ledger.s.pieces

    def backward_loss(self, seed: Storage) -> None:
        """Loss, head and final norm."""
        ledger, sharding, s = self.ledger, self.sharding, self.ledger.s
        if not self.apart:
            sharding.pre_backward(ledger.head_group, ledger.layer, gathered=False)
        if s.loss_head not in ("chunked", "fused"):
            self.head.env["LOSS"].grad = ledger.tape.hold(seed)
        self.head.backward(upto=self.logits_at)
        if self.apart:
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
        ledger = micro.ledger
        s, tape = ledger.s, ledger.tape
        table = blocks.gpt2_layer(s) if s.gpt2 else blocks.llama_layer(s)
        self.table = kernels.with_adapters(s, table) if s.traced else kernels.layer(s)
        self.grad_dims, unit = s.residual, ledger.weight_unit
        self.entry = Value(micro.fake(s.residual, unit), s.residual, unit, needs)
        self.graph = micro.graph(ledger.layer, save=not checkpoint, kept=s.selective)
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
                storage = Storage(value.storage.birth)
                storage.constant = name in self.micro.kept
                graph.env[name] = Value(storage, value.dims, value.unit, False)
        graph.run(self.table)

    def write_backward(self) -> None:
        """Run the layer backward, recomputing it first under checkpointing."""
        micro, ledger, tape = self.micro, self.micro.ledger, self.micro.ledger.tape
        graph, out, recomputed = self.graph, self.out, None
        if self.checkpoint:
            graph = micro.graph(ledger.layer, recompute=True, kept=ledger.s.selective)
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
            out.grad = micro.fake(self.grad_dims, ledger.weight_unit)
            graph.backward(recomputed=recomputed)


def last_use(core: list[Event], later: list[Event]) -> list[Event]:
    """Return a layer's backward pass with the constants freed where it marked them unused.

    Not those that the layer whose backward pass comes `later` uses and marks too.
    """
    used = {size for size, count, _ in later if not count}
    return [[size, count or (0 if size in used else -1), kind] for size, count, kind in core]


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
