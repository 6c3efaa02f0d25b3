"""One micro batch: forward and backward, written as segments of events.

Layers of one model are alike, so a layer is run once and its events are placed as often as needed;
the middle layers of a deep model are one segment with a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from trainmem.transformer import heads, losses
from trainmem.transformer.engine.dims import SCALAR, Shape
from trainmem.transformer.engine.graph import Graph, Value
from trainmem.transformer.engine.tape import (
    GRADIENTS,
    LOGITS,
    SAVED,
    TEMPORARY,
    Parameters,
    Storage,
    net,
    whole,
)
from trainmem.transformer.layer import CONSTANTS, Layer, last_use
from trainmem.transformer.stacks.collectives import Collectives, Progress
from trainmem.transformer.writer import StepWriter


class Micro:
    """One micro batch: its blocks' graphs, from forward to backward.

    Parameters
    ----------
    writer, collectives
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
        writer: StepWriter,
        collectives: Collectives,
        progress: Progress,
        adds: bool,
        head: bool | None = None,
    ) -> None:
        self.has_head = writer.s.last if head is None else head
        self.writer, self.collectives = writer, collectives
        self.progress, self.adds = progress, adds
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
        writer = self.writer
        graph = Graph(
            writer.tape,
            writer.precision,
            parameters,
            save=save,
            recompute=recompute,
            kept=writer.s.kernels.selected(writer.s) if kept else frozenset(),
        )
        graph.collect = self.collect
        graph.adapter_unit = writer.s.adapter_unit
        graph.adapted = writer.s.frozen
        graph.quantized = writer.s.quantization != "none"
        return graph

    def unwritten(self, shape: Shape, unit: int) -> Storage:
        """Return a storage whose birth is written elsewhere (by the block before)."""
        return self.writer.tape.unwritten(shape, unit, TEMPORARY)

    def collect(self, name: str, g: Storage) -> None:
        """Take a weight's gradient.

        The head's waits for those of all its uses (chunks, a tied embedding), summed. Where a
        gradient of the same kind exists already, the new one is added to it and freed; FSDP's whole
        gradients stay until `post_backward`.
        """
        s, tape = self.writer.s, self.writer.tape
        if s.framework.adds_to_main:
            tape.drop(g)
            return
        if s.tied and name == "embed":
            name = "head.weight"
        uses = heads.contributions(self, name)
        if uses > 1:
            self.arrived[name] += 1
            if name in self.pending:
                summed = self.writer.named[name]
                unit = s.adapter_unit if summed.adapter else self.writer.weight_unit
                total = tape.alloc(summed.shape, unit, GRADIENTS)
                tape.drop(self.pending[name])
                tape.drop(g)
                g = total
            self.pending[name] = g
            if self.arrived[name] < uses:
                return
        if self.collectives.takes(name, g):
            return
        if s.gathers:
            adds = self.progress.whole_exists and not self.collectives.accumulates_whole
        else:
            adds = self.adds
        if adds:
            tape.drop(g)

    # ---- forward ----
    def forward(self) -> None:
        """Embedding, layers, head and loss."""
        self.forward_embedding()
        writer, collectives, s = self.writer, self.collectives, self.writer.s
        self.kinds = self.kinds_of_layers()
        self.link()
        after = self.kinds[-1].after
        for low, high in self.spread(1, 1, hooks=False):
            layer = self.kind(low)
            collectives.pre_forward(writer.layer)
            writer.tape.events += layer.body
            collectives.post_forward(writer.layer)
            if low > 1 or not s.code.holds_input:
                writer.tape.events += layer.after
            writer.close("fwd", "forward", high - low + 1, (low, high))
        if self.has_head:
            self.forward_norm()
        if s.code.holds_input and not self.held_input:  # it was held by the model's own variable
            writer.tape.events += after
        if self.has_head:
            self.forward_loss()
        else:
            out = self.kinds[0].out
            sent = whole(s.residual, writer.weight_unit)
            writer.emit(sent, -1, out.storage.block.kind)
            if not s.split:
                collectives.post_forward(writer.head_group)
            collectives.free_buffer()
            for name in set(self.embed.env) - set(self.kept):
                self.embed.forget(name)
            writer.close("fwd", "output sent to the next stage")

    def kind(self, number: int) -> Layer:
        """Return the kind of a layer, by its number."""
        if self.writer.s.every_2nd:  # the second, the fourth, ...
            return self.kinds[number % len(self.kinds)]
        return self.kinds[-1 if number == 1 else 0]

    def kinds_of_layers(self) -> list[Layer]:
        """Make the kinds of layers that there are; the last of them is the first layer's.

        One kind; or every second layer is checkpointed; or, where only adapters are trained, no
        gradient goes to the first layer's input.
        """
        s = self.writer.s
        if s.every_2nd:
            return [Layer(self, True), Layer(self, False)][s.num_layers == 1 :]
        like_others = Layer(self, s.checkpoint)
        if s.checkpoint or self.embedded.needs or not s.exact:  # tables are of a mean layer
            return [like_others]
        return [like_others, Layer(self, False, needs=False)]

    def spread(self, first: int, last: int, hooks: bool = True) -> list[tuple[int, int]]:
        """Return ranges of like layers: each by itself where kinds differ, or collectives do.

        `hooks` says whether those on gradients have a part.
        """
        s = self.writer.s
        apart = s.every_2nd or (s.framework.by_module and (hooks or s.gathers))
        return list(spread(s.num_layers, s.num_layers if apart else first, last))

    def link(self) -> None:
        """Give the tensor between two layers one kind: every output is the next one's input."""
        ends = [v for layer in self.kinds for v in (layer.entry, layer.out)]
        saved = any(v.storage.block.kind == SAVED for v in ends)
        for value in (*ends, self.embedded):
            value.storage.block.kind = SAVED if saved else self.kinds[0].entry.storage.block.kind
        for layer in self.kinds:
            with self.writer.tape.recording() as layer.after:
                self.writer.tape.drop(layer.entry.storage)

    def forward_embedding(self) -> None:
        """Token ids to the first layer's input, and the constants every layer uses."""
        writer, s = self.writer, self.writer.s
        self.collectives.pre_forward(writer.embed_group)
        self.embed = self.graph(writer.named)
        table = s.kernels.embedding(s)
        self.embed.run(table.lookup, table.variables)
        if s.code.leaf and s.frozen and s.checkpoint:
            self.hold_leaf(s.code.leaf)
        if s.split:
            self.collectives.post_forward(writer.embed_group)
        self.embed.run(table.rest, table.variables)
        self.embedded = self.embed.take("X")
        writer.close("fwd", "embedding")

    @property
    def held_input(self) -> bool:
        """Whether the first layer's input is such a leaf, which its layer may not keep."""
        s = self.writer.s
        return s.frozen and s.every_2nd and s.exact and not s.code.leaf

    def hold_leaf(self, name: str) -> None:
        """Make a looked-up tensor a leaf that wants a gradient, alive until the graph dies.

        So peft does for checkpointing over a frozen embedding (`enable_input_require_grads`).
        Elsewhere it is the first layer's input, which the checkpoint keeps anyway.
        """
        self.leaf = self.embed.env[name]
        self.leaf.needs = True
        self.writer.tape.hold(self.leaf.storage, SAVED)

    @property
    def kept(self) -> tuple[str, ...]:
        """Constants that live into the backward pass: rotary saves two, checkpoints hold all."""
        s = self.writer.s
        if not s.checkpoint or (s.every_2nd and s.num_layers == 1):
            return ("COS", "SIN")
        saved = s.code.saves_positions and not s.frozen  # by the embedding, which then keeps them
        return tuple(name for name in CONSTANTS if not (saved and name == "IDS"))

    def forward_norm(self) -> None:
        """Run the final norm; the model's variables go with its return."""
        writer, s = self.writer, self.writer.s
        if s.split:
            self.collectives.pre_forward(writer.head_group)
        self.head = self.graph(writer.named)
        self.final = Value(
            self.unwritten(s.residual, writer.weight_unit), s.residual, writer.weight_unit
        )
        self.final.storage.block.kind = self.kinds[0].entry.storage.block.kind
        self.head.env["X"] = self.final
        self.head.run(s.kernels.final_norm(s), returns=("Y",))
        self.head.forget("X")
        for name in set(self.embed.env) - set(self.kept):
            self.embed.forget(name)
        self.hidden = self.head.env["Y"]
        self.logits_at = len(self.head.nodes)

    def forward_loss(self) -> None:
        """Head and loss; the root is given up, then the logits, then autocast's weights."""
        writer, head, s = self.writer, self.head, self.writer.s
        if s.loss_head == "chunked":
            heads.chunks_forward(self)
        elif s.loss_head == "fused":
            heads.fused_forward(self)
        else:
            head.run(s.kernels.logits(s), returns=("LOGITS", *losses.PIECE_LOGITS))
            self.logits_at = len(head.nodes)
        if s.loss_in_pieces:  # the loss is the caller's, outside the model
            head.forget("Y")
        if self.apart:
            self.collectives.post_forward(writer.head_group)
        if s.loss_in_pieces:
            self.collectives.free_buffer()
        self.run_loss()
        if not s.loss_in_pieces:
            head.forget("Y")
        if not self.apart:
            self.collectives.post_forward(writer.head_group)
        self.collectives.free_buffer()
        for name in list(head.env):
            if name.startswith("LOGITS") or (name == "OUTPUT" and s.loss_head == "held"):
                head.forget(name)
        self.in_every_layer(lambda layer: None if layer.checkpoint else layer.graph.drop_cache())
        self.in_every_layer(lambda layer: layer.graph.clear_casts())
        head.clear_casts()
        writer.close("fwd", "final norm, logits and loss")

    def in_every_layer(self, frees: Callable[[Layer], None]) -> None:
        """Write what each kind of layer frees, as often as there are such layers."""
        tape, layers = self.writer.tape, self.writer.s.num_layers
        for layer in self.kinds:
            with tape.recording() as events:
                frees(layer)
            times = sum(self.kind(i) is layer for i in range(1, layers + 1))
            tape.events += net(events, times)

    def run_loss(self) -> None:
        """Run what comes between logits and loss."""
        head, s = self.head, self.writer.s
        if s.loss_head == "transformers":
            head.run(losses.cross_entropy(s), returns=("LOSS",))
        elif s.loss_head in ("held", "returned"):
            head.run(losses.held_logits(s), returns=("OUTPUT",))
            head.forget("LOGITS")
            head.run(losses.held_cross_entropy(s), returns=("LOSS",))
        elif s.loss_in_pieces:
            head.run(losses.piece_losses(s), returns=("LOSS",))
        elif s.loss_head in losses.ONE_KERNEL:
            head.run(losses.ONE_KERNEL[s.loss_head], returns=("LOSS",))

    # ---- backward ----
    def backward(self) -> None:
        """Loss, head, layers from the last, embedding, root."""
        writer, collectives, s = self.writer, self.collectives, self.writer.s
        if self.has_head:
            seed = writer.tape.alloc(SCALAR, 4, TEMPORARY)
            self.backward_loss(seed)
        else:
            writer.tape.alloc(s.residual, writer.weight_unit, TEMPORARY)
            group = {} if s.split else writer.head_group
            collectives.pre_backward(group, writer.layer, gathered=False)
            writer.close(self.phase("layers"), "gradient received from the next stage")
        for layer in self.kinds:
            layer.write_backward()
        for low, high in reversed(self.spread(2, 2)):
            core = self.kind(low).core
            following = writer.layer if low > 1 else writer.embed_group if s.split else None
            collectives.pre_backward(writer.layer, following)
            if low == 1 or (low == 2 and s.every_2nd):
                core = last_use(core, later=self.kind(1).core if low == 2 else [])
            writer.tape.events += core
            collectives.post_backward(writer.layer, self.progress)
            writer.close(self.phase("layers"), "backward", high - low + 1, (low, high))
        if s.split:
            collectives.pre_backward(writer.embed_group, None)
        if self.kind(1).entry.needs:
            grad = self.unwritten(s.residual, writer.weight_unit)
            if s.first and (not s.frozen or self.leaf):
                self.embedded.grad = grad
                self.embed.backward()
            else:  # sent to the stage before, or of no use
                writer.tape.drop(grad)
        collectives.post_backward(writer.embed_group, self.progress)
        collectives.free_reduced()
        if self.has_head:
            writer.tape.drop(seed)
            for name in list(self.head.env):  # the loss, and the output if the caller kept it
                self.head.forget(name)
        self.in_every_layer(lambda layer: layer.graph.drop_cache())
        self.free_graph()
        writer.close(self.phase("layers"), "embedding backward and last reduction")

    def free_graph(self) -> None:
        """Let the graph's leaves go, which die with the loss."""
        writer = self.writer
        if self.leaf:
            writer.tape.drop(self.leaf.gradient)
            writer.tape.drop(self.leaf.storage)
        if self.held_input:
            writer.tape.events += self.kinds[-1].after

    @property
    def apart(self) -> bool:
        """Whether the head's weights come and go apart from the loss."""
        return self.writer.s.split or self.writer.s.loss_in_pieces

    def backward_loss(self, seed: Storage) -> None:
        """Loss, head and final norm."""
        writer, collectives, s = self.writer, self.collectives, self.writer.s
        if not self.apart:
            collectives.pre_backward(writer.head_group, writer.layer, gathered=False)
        if s.loss_head not in ("chunked", "fused"):
            self.head.env["LOSS"].grad = writer.tape.hold(seed)
        self.head.backward(upto=self.logits_at)
        if self.apart:
            collectives.pre_backward(writer.head_group, writer.layer, gathered=False)
        if s.loss_head == "chunked":
            heads.chunks_backward(self)
        elif s.loss_head == "fused":
            heads.fused_backward(self)
        self.head.backward()
        if s.split:
            collectives.post_backward(writer.head_group, self.progress)
        # The loss ends where the last logits-sized tensor dies; without any, at once.
        events = writer.tape.events
        ends = [i for i, e in enumerate(events) if e.block.kind is LOGITS and e.change < 0]
        cut = max(ends, default=0) + 1
        writer.tape.events = events[:cut]
        writer.close(self.phase("loss"), "loss backward")
        writer.tape.events = events[cut:]
        writer.close(self.phase("layers"), "head and final norm backward")

    def phase(self, name: str) -> str:
        """Return the phase: backward passes before the last micro batch's are one of their own."""
        return name if self.progress.last else "other"


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
