"""The engine: a training step as an ordered list of allocations and frees.

Nothing here knows about a model. A block is a table of :class:`Row`; :class:`Graph` runs it as
PyTorch's eager mode would (reference counts, what autograd saves, what each backward kernel
allocates) and writes every birth and death of a storage to a :class:`Tape`. Lifetimes are therefore
derived, never written down.

Sizes stay symbolic: a storage is a product of one-letter dimensions times bytes, so a tape holds
for every configuration of the same structure, and a configuration is one matrix product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

#: What a byte is for. The first three are the model states; a timeline stacks them in this order.
KINDS = (
    "weights",
    "gradients",
    "optimizer",
    "gathered parameters",
    "saved activations",
    "recomputation",
    "logits and loss",
    "temporaries",
)
WEIGHTS, GRADIENTS, OPTIMIZER, GATHERED, SAVED, RECOMPUTED, LOGITS, TEMPORARY = range(len(KINDS))

#: One parameter tensor: (dimension 0, the other dimensions), e.g. ``("q", "h")``.
Parameter = tuple[str, str]
#: What a size is computed from: ("" | "8bit", dims, bytes) or ("shard" | "gather", parameters,
#: bytes).
SizeKey = tuple[str, str | tuple[Parameter, ...], float]
#: One event: [index of the size, +1 or -1 (or more for many layers at once), kind].
Event = list[int]


class Storage:
    """A block of memory: the event of its birth (size and kind), and how many hold it.

    A `constant` belongs to the root but dies with its last use in the first layer's backward pass:
    a layer marks the place with an event of count 0.
    """

    __slots__ = ("birth", "constant", "refs")

    def __init__(self, birth: Event, refs: int = 1) -> None:
        self.birth, self.refs, self.constant = birth, refs, False


class Tape:
    """The event list being written, and the distinct sizes that occur in it."""

    def __init__(self) -> None:
        self.sizes: dict[SizeKey, int] = {}
        self.events: list[Event] = []

    def alloc(self, dims: str, unit: float, kind: int, count: int = 1) -> Storage:
        """Allocate `dims` elements of `unit` bytes (`count` such blocks, freed together)."""
        return self.alloc_key(("", dims, unit), kind, count)

    def alloc_key(self, key: SizeKey, kind: int, count: int = 1) -> Storage:
        """Allocate a block of any kind of size."""
        size = self.sizes.setdefault(key, len(self.sizes))
        event = [size, count, kind]
        self.events.append(event)
        return Storage(event)

    def hold(self, storage: Storage, kind: int | None = None) -> Storage:
        """Take one more reference; with `kind`, say what the block turned out to be for."""
        storage.refs += 1
        if kind is not None:
            storage.birth[2] = kind
        return storage

    def drop(self, storage: Storage) -> None:
        """Give one reference back; the last one frees the block."""
        storage.refs -= 1
        if storage.refs == 0:
            size, count, kind = storage.birth
            self.events.append([size, -count, kind])
        elif storage.refs == 1 and storage.constant:
            self.events.append([storage.birth[0], 0, storage.birth[2]])
        elif storage.refs < 0:
            raise AssertionError("a storage was freed twice")

    @contextmanager
    def recording(self) -> Iterator[list[Event]]:
        """Collect the events written inside the block instead of appending them."""
        outer, self.events = self.events, []
        try:
            yield self.events
        finally:
            self.events = outer


def net(events: Iterable[Event], times: int) -> list[Event]:
    """Return what `times` repetitions of `events` leave behind, frees first: no false peak."""
    total: Counter[tuple[int, int]] = Counter()
    for size, count, kind in events:
        total[size, kind] += count
    left = [[size, count * times, kind] for (size, kind), count in total.items() if count]
    return sorted(left, key=lambda e: e[1] > 0)


@dataclass(frozen=True, slots=True)
class Row:
    """One operation of a block: `out = op(ins)`, with a weight where it has one.

    `dims` is needed only where the output's elements do not follow from the inputs.
    """

    out: str
    op: str
    ins: str = ""
    weight: str = ""
    dims: str = ""


class Value:
    """A tensor as autograd sees it: a storage, its elements, bytes per element, its gradient."""

    __slots__ = ("dims", "grad", "needs", "parameter", "storage", "unit")

    def __init__(
        self, storage: Storage, dims: str, unit: int, needs: bool = True, parameter: str = ""
    ) -> None:
        self.storage, self.dims, self.unit = storage, dims, unit
        self.needs, self.parameter = needs, parameter
        self.grad: Storage | None = None

    @property
    def gradient(self) -> Storage:
        """The gradient, once there is one."""
        if self.grad is None:
            raise AssertionError("no gradient reached this tensor")
        return self.grad


Grads = list[tuple[Value, Storage, str, int]]


@dataclass(slots=True)
class Node:
    """One step of the backward pass: which values it gives gradients to, and what it kept."""

    outs: tuple[Value, ...]
    backward: Callable[..., Grads]
    saved: list[Storage] = field(default_factory=list)


@dataclass(slots=True)
class Precision:
    """Bytes per element: of weights as computed with, and of matrix products under autocast."""

    weight: int
    autocast: bool = False


class Graph:
    """Runs tables of rows on a tape, keeping what the backward pass needs.

    Parameters
    ----------
    tape
        Where allocations and frees go.
    precision
        Bytes per element of the weights, and whether autocast is on.
    parameters
        The block's parameter tensors by name.
    save
        Whether saved tensors are kept (False for the forward pass of a checkpoint).
    recompute
        Whether this is a checkpoint's recomputation: saved tensors then die inside the backward
        kernel that unpacks them (`torch.utils.checkpoint`, non-reentrant), not after it.
    kept
        Rows whose outputs a selective checkpoint keeps: their forward pass fills `held`, their
        recomputation takes from it (`create_selective_checkpoint_contexts`).
    """

    def __init__(
        self,
        tape: Tape,
        ops: Mapping[str, Callable[[Graph, Row], None]],
        precision: Precision,
        parameters: dict[str, Parameter],
        *,
        save: bool = True,
        recompute: bool = False,
        kept: frozenset[str] = frozenset(),
    ) -> None:
        self.tape, self.ops, self.precision = tape, ops, precision
        self.save, self.recompute = save, recompute
        self.parameters = parameters
        self.nodes: list[Node] = []
        self.env: dict[str, Value] = {}
        self.casts: dict[str, Value] = {}  # autocast's cache of weights, lives to its end
        self.params: dict[str, Value] = {}
        self.collect: Callable[[str, Storage], None] = lambda name, g: None
        self.kept, self.current = kept, ""
        self.held: dict[str, list[Storage]] = {}
        self.trains: Callable[[str], bool] = lambda name: True
        self.adapter_unit = precision.weight  # bytes per element of LoRA's weights
        self.adapted = self.quantized = False
        self.cache: list[Storage] = []  # keys and values that the model returns
        self.last_save = 0  # number of events written when the last tensor was saved

    # ---- forward ----
    def run(self, rows: Sequence[Row]) -> None:
        """Run `rows`; a name dies after the last row with it, upper-case ones excepted."""
        last: dict[str, int] = {}
        for i, row in enumerate(rows):
            for name in (*row.out.split(), *row.ins.split()):
                last[name] = i
        dying: dict[int, list[str]] = {}
        for name, i in last.items():
            dying.setdefault(i, []).append(name)
        for i, row in enumerate(rows):
            if row.op != "end":
                self.current = row.out if row.out in self.kept else ""
                if self.adapted and not self.needs_gradient(row):
                    self.run_frozen(row)
                else:
                    self.ops[row.op](self, row)
                self.current = ""
            for name in dying.get(i, ()):
                if name in self.env and not name.isupper():
                    self.forget(name)

    def needs_gradient(self, row: Row) -> bool:
        """Whether a gradient will pass an operation: to an input, or to a trained weight."""
        if any(self.env[name].needs for name in row.ins.split()):
            return True
        names = (row.weight, row.weight + ".weight") if row.weight else ()
        return any(name in self.parameters and self.trains(name) for name in names)

    def run_frozen(self, row: Row) -> None:
        """Run an operation that no gradient will pass: nothing is saved."""
        nodes, save, at = len(self.nodes), self.save, self.last_save
        self.save = False
        self.ops[row.op](self, row)
        self.save, self.last_save = save, at
        del self.nodes[nodes:]
        for name in row.out.split():
            self.env[name].needs = False

    def forget(self, name: str) -> None:
        """Let go of the variable `name`."""
        self.release(self.env.pop(name))

    def take(self, name: str) -> Value:
        """Hand the variable `name` to the caller, with its reference."""
        return self.env.pop(name)

    def new(self, dims: str, unit: float, kind: int | None = None) -> Storage:
        """Allocate a tensor; anything as wide as the vocabulary counts to the loss."""
        if kind is None:
            kind = LOGITS if "V" in dims and "h" not in dims else TEMPORARY
        if not self.current:
            return self.tape.alloc(dims, unit, kind)
        if self.recompute:
            return self.held[self.current].pop(0)
        storage = self.tape.hold(self.tape.alloc(dims, unit, SAVED))
        self.held.setdefault(self.current, []).append(storage)
        return storage

    def make(self, dims: str, unit: int, needs: bool = True) -> Value:
        """Allocate a tensor that may get a gradient."""
        return Value(self.new(dims, unit), dims, unit, needs)

    def bind(self, name: str, value: Value) -> None:
        """Name a value; it takes over the reference its storage was born with."""
        self.env[name] = value

    def node(
        self,
        outs: tuple[Value, ...],
        backward: Callable[..., Grads],
        *saved: Storage,
        at: int | None = None,
    ) -> None:
        """Record a step of the backward pass; `at` = events written when its tensors were saved."""
        node = Node(outs, backward)
        for storage in saved:
            if self.save:
                kind = None
                if storage.birth[2] == TEMPORARY:
                    kind = RECOMPUTED if self.recompute else SAVED
                node.saved.append(self.tape.hold(storage, kind))
            self.last_save = len(self.tape.events) if at is None else at
        self.nodes.append(node)

    def parameter(self, name: str) -> Value:
        """Return a weight, which lives outside the graph."""
        rows, cols = self.parameters[name]
        value = self.params.get(name)
        if value is None:
            at_rest = Storage([0, 0, WEIGHTS], refs=1 << 40)  # never freed here
            unit = self.adapter_unit if ".lora_" in name else self.precision.weight
            value = Value(at_rest, rows + cols, unit, self.trains(name), parameter=name)
            self.params[name] = value
        return value

    def cast(self, value: Value, unit: int) -> Value:
        """`value.to(dtype)`: the same tensor when it already has the type, else a new one."""
        if value.unit == unit:
            self.tape.hold(value.storage)
            return value
        out = self.make(value.dims, unit, value.needs)
        if value.parameter:
            out.storage.birth[2] = GATHERED

        def backward(g: Storage) -> Grads:
            return [(value, self.new(value.dims, value.unit), value.dims, value.unit)]

        self.node((out,), backward)
        return out

    def low(self, value: Value) -> Value:
        """Lower an operand of a matrix product under autocast, weights once a forward pass."""
        if not self.precision.autocast:
            return self.cast(value, value.unit)
        if not (value.parameter and value.needs):  # autocast keeps casts of trained weights only
            return self.cast(value, 2)
        cached = self.casts.get(value.parameter)
        if cached is None:
            cached = self.casts[value.parameter] = self.cast(value, 2)
        self.tape.hold(cached.storage)
        return cached

    def release(self, value: Value) -> None:
        """Give back a reference to a tensor."""
        self.tape.drop(value.storage)

    def clear_casts(self) -> None:
        """Autocast ends: its cached weights go, unless the backward pass holds them."""
        for value in self.casts.values():
            self.release(value)
        self.casts.clear()

    def drop_cache(self) -> None:
        """Let go of the keys and values that the model returned."""
        for storage in self.cache:
            self.tape.drop(storage)
        self.cache.clear()

    # ---- backward ----
    def stopped_early(self, events: list[Event]) -> list[Event]:
        """Cut a recomputation at its last saved tensor; its variables die there."""
        return events[: self.last_save] + net(events[self.last_save :], 1)

    def keep_in_frame(self, *held: Storage) -> None:
        """Keep what a checkpoint's frame holds until the block's last saved tensor is used."""
        next(node for node in self.nodes if node.saved).saved.extend(held)

    def backward(self, upto: int = 0, recomputed: list[Event] | None = None) -> None:
        """Run the nodes from the last down to `upto`, as PyTorch's engine orders them.

        `recomputed` goes ahead of the first node that unpacks a saved tensor, which is where a
        checkpoint recomputes.
        """
        while len(self.nodes) > upto:
            node = self.nodes.pop()
            if recomputed and node.saved:
                self.tape.events += recomputed
                recomputed = None
            self.step(node)

    def step(self, node: Node) -> None:
        """Run one node: its kernels, then the frees, then the sums of gradients."""
        held = [out.grad for out in node.outs if out.grad is not None]
        if not held:  # no gradient arrived (constants)
            self.unsave(node)
            return
        grads = node.backward(*held)
        if self.recompute:
            self.unsave(node)
        grads = [self.fit(*grad) for grad in grads]
        for g in held:
            self.tape.drop(g)
        for out in node.outs:
            out.grad = None
        if not self.recompute:
            self.unsave(node)
        for value, g, _, _ in sorted(grads, key=lambda grad: bool(grad[0].parameter)):
            self.accumulate(value, g)

    def unsave(self, node: Node) -> None:
        """Let go of what a node saved."""
        for storage in node.saved:
            self.tape.drop(storage)
        node.saved.clear()

    def fit(
        self, value: Value, g: Storage, dims: str, unit: int
    ) -> tuple[Value, Storage, str, int]:
        """Sum a gradient to its tensor's shape and type (`validate_outputs` in PyTorch)."""
        for changed, new_dims, new_unit in (
            (dims != value.dims, value.dims, unit),
            (unit != value.unit, value.dims, value.unit),
        ):
            if changed:
                smaller = self.new(new_dims, new_unit)
                self.tape.drop(g)
                g = smaller
        return value, g, value.dims, value.unit

    def accumulate(self, value: Value, g: Storage) -> None:
        """Give `value` a gradient; a second one allocates the sum and frees both.

        So it is in traced steps. Outside of a trace PyTorch may add in place, where nothing else
        holds either gradient (`InputBuffer::accumulate`): then this is one such tensor too many.
        """
        if not value.needs:
            self.tape.drop(g)
        elif value.parameter:
            g.birth[2] = GRADIENTS
            self.collect(value.parameter, g)
        elif value.grad is None:
            value.grad = g
        else:
            total = self.new(value.dims, value.unit)
            self.tape.drop(value.grad)
            self.tape.drop(g)
            value.grad = total

    def share(self, g: Storage) -> Storage:
        """Pass a gradient on as it is."""
        return self.tape.hold(g)
