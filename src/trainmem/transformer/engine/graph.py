"""A small autograd: runs tables of operations as PyTorch's eager mode would.

Reference counts, what autograd saves, what each backward kernel allocates: lifetimes are derived,
never written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trainmem.transformer.engine.dims import SCALAR, H, Shape, V
from trainmem.transformer.engine.tape import (
    GATHERED,
    GRADIENTS,
    LOGITS,
    RECOMPUTED,
    SAVED,
    TEMPORARY,
    WEIGHTS,
    Block,
    Event,
    Kind,
    Parameters,
    Storage,
    Tape,
    net,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One operation of a block: `out = op(ins)`, with a weight where it has one.

    Attributes
    ----------
    out, ins
        Names of tensors, separated by spaces.
    op
        The operation: a function of `ops` or `fused_ops`, or one like them. None ends variables
        that Python's frames keep alive up to here (a function's locals live to its return).
    weight
        Name of the product or norm whose parameters it uses.
    shape, unit
        Needed only where the output's elements, or bytes each, do not follow from the inputs.
    """

    out: str
    op: Operation | None
    ins: str = ""
    weight: str = ""
    shape: Shape = SCALAR
    unit: float | None = None


def end(names: str) -> Row:
    """Return a row that keeps variables alive up to here."""
    return Row("", None, names)


#: Rows in the order in which they run.
Table = tuple[Row, ...]


class Value:
    """A tensor as autograd sees it: a storage, its elements, bytes per element, its gradient."""

    __slots__ = ("grad", "needs", "parameter", "shape", "storage", "unit")

    def __init__(
        self, storage: Storage, shape: Shape, unit: int, needs: bool = True, parameter: str = ""
    ) -> None:
        self.storage, self.shape, self.unit = storage, shape, unit
        self.needs, self.parameter = needs, parameter
        self.grad: Storage | None = None

    @property
    def gradient(self) -> Storage:
        """The gradient, once there is one."""
        if self.grad is None:
            raise AssertionError("no gradient reached this tensor")
        return self.grad


#: Gradients of a backward kernel: of which tensor, where, their shape and bytes per element.
Grads = list[tuple[Value, Storage, Shape, int]]


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
        precision: Precision,
        parameters: Parameters,
        *,
        save: bool = True,
        recompute: bool = False,
        kept: frozenset[str] = frozenset(),
    ) -> None:
        self.tape, self.precision = tape, precision
        self.save, self.recompute = save, recompute
        self.parameters = parameters
        self.nodes: list[Node] = []
        self.env: dict[str, Value] = {}
        self.casts: dict[str, Value] = {}  # autocast's cache of weights, lives to its end
        self.params: dict[str, Value] = {}
        self.collect: Callable[[str, Storage], None] = lambda name, g: None
        self.kept, self.current = kept, ""
        self.held: dict[str, list[Storage]] = {}
        self.adapter_unit = precision.weight  # bytes per element of LoRA's weights
        self.adapted = self.quantized = False
        self.cache: list[Storage] = []  # keys and values that the model returns
        self.last_save = 0  # number of events written when the last tensor was saved

    # ---- forward ----
    def run(self, rows: Sequence[Row], returns: Iterable[str] = ()) -> None:
        """Run `rows`; a name dies after the last row with it, but for the caller's.

        Those are what was there before, and what is returned.
        """
        lasting = {*self.env, *returns}
        last: dict[str, int] = {}
        for i, row in enumerate(rows):
            for name in (*row.out.split(), *row.ins.split()):
                last[name] = i
        dying: dict[int, list[str]] = {}
        for name, i in last.items():
            dying.setdefault(i, []).append(name)
        for i, row in enumerate(rows):
            if row.op is not None:
                self.current = row.out if row.out in self.kept else ""
                if self.adapted and not self.needs_gradient(row):
                    self.run_frozen(row, row.op)
                else:
                    row.op(self, row)
                self.current = ""
            for name in dying.get(i, ()):
                if name in self.env and name not in lasting:
                    self.forget(name)

    def needs_gradient(self, row: Row) -> bool:
        """Whether a gradient will pass an operation: to an input, or to a trained weight."""
        if any(self.env[name].needs for name in row.ins.split()):
            return True
        names = (row.weight, row.weight + ".weight") if row.weight else ()
        return any(name in self.parameters and self.trains(name) for name in names)

    def trains(self, name: str) -> bool:
        """Whether a parameter is trained: all, or only the adapters."""
        return not self.adapted or self.parameters[name].adapter

    def run_frozen(self, row: Row, op: Operation) -> None:
        """Run an operation that no gradient will pass: nothing is saved."""
        nodes, save, at = len(self.nodes), self.save, self.last_save
        self.save = False
        op(self, row)
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

    def new(self, shape: Shape, unit: float, kind: Kind | None = None) -> Storage:
        """Allocate a tensor; anything as wide as the vocabulary counts to the loss."""
        if kind is None:
            kind = LOGITS if V in shape and H not in shape else TEMPORARY
        if not self.current:
            return self.tape.alloc(shape, unit, kind)
        if self.recompute:
            return self.held[self.current].pop(0)
        storage = self.tape.hold(self.tape.alloc(shape, unit, SAVED))
        self.held.setdefault(self.current, []).append(storage)
        return storage

    def make(self, shape: Shape, unit: int, needs: bool = True) -> Value:
        """Allocate a tensor that may get a gradient."""
        return Value(self.new(shape, unit), shape, unit, needs)

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
                if storage.block.kind is TEMPORARY:
                    kind = RECOMPUTED if self.recompute else SAVED
                node.saved.append(self.tape.hold(storage, kind))
            self.last_save = len(self.tape.events) if at is None else at
        self.nodes.append(node)

    def parameter(self, name: str) -> Value:
        """Return a weight, which lives outside the graph."""
        value = self.params.get(name)
        if value is None:
            found = self.parameters[name]
            at_rest = Storage(Block(0, WEIGHTS), refs=1 << 40)  # never freed here
            unit = self.adapter_unit if found.adapter else self.precision.weight
            value = Value(at_rest, found.shape, unit, self.trains(name), parameter=name)
            self.params[name] = value
        return value

    def cast(self, value: Value, unit: int) -> Value:
        """`value.to(dtype)`: the same tensor when it already has the type, else a new one."""
        if value.unit == unit:
            self.tape.hold(value.storage)
            return value
        out = self.make(value.shape, unit, value.needs)
        if value.parameter:
            out.storage.block.kind = GATHERED

        def backward(g: Storage) -> Grads:
            return [(value, self.new(value.shape, value.unit), value.shape, value.unit)]

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
        self, value: Value, g: Storage, shape: Shape, unit: int
    ) -> tuple[Value, Storage, Shape, int]:
        """Sum a gradient to its tensor's shape and type (`validate_outputs` in PyTorch)."""
        for changed, new_shape, new_unit in (
            (shape != value.shape, value.shape, unit),
            (unit != value.unit, value.shape, value.unit),
        ):
            if changed:
                smaller = self.new(new_shape, new_unit)
                self.tape.drop(g)
                g = smaller
        return value, g, value.shape, value.unit

    def accumulate(self, value: Value, g: Storage) -> None:
        """Give `value` a gradient; a second one allocates the sum and frees both.

        So it is in traced steps. Outside of a trace PyTorch may add in place, where nothing else
        holds either gradient (`InputBuffer::accumulate`): then this is one such tensor too many.
        """
        if not value.needs:
            self.tape.drop(g)
        elif value.parameter:
            g.block.kind = GRADIENTS
            self.collect(value.parameter, g)
        elif value.grad is None:
            value.grad = g
        else:
            total = self.new(value.shape, value.unit)
            self.tape.drop(value.grad)
            self.tape.drop(g)
            value.grad = total

    def gradients(self, *values: Value) -> Grads:
        """Allocate a gradient for each tensor, like it."""
        return [(v, self.new(v.shape, v.unit), v.shape, v.unit) for v in values]

    def share(self, g: Storage) -> Storage:
        """Pass a gradient on as it is."""
        return self.tape.hold(g)


#: What a row does: allocates, binds its outputs, records its backward pass.
Operation = Callable[[Graph, Row], None]
