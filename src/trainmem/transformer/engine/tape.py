"""Blocks of memory and the events of their lives: what a step writes, whoever writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

from trainmem.transformer.engine.dims import Dim, Shape


class Kind(IntEnum):
    """What a byte is for. The first three are the model states; a timeline stacks in this order."""

    WEIGHTS = 0
    GRADIENTS = 1
    OPTIMIZER = 2
    GATHERED = 3
    SAVED = 4
    RECOMPUTED = 5
    LOGITS = 6
    TEMPORARY = 7


#: The kinds as people read them.
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
WEIGHTS, GRADIENTS, OPTIMIZER, GATHERED, SAVED, RECOMPUTED, LOGITS, TEMPORARY = Kind


class Stream(IntEnum):
    """The CUDA stream that a block is allocated on: the caching allocator keeps a pool of each."""

    COMPUTE = 0
    GATHER = 1
    REDUCE = 2


class Form(IntEnum):
    """How a block's elements follow from the shapes it is of."""

    WHOLE = 0
    SHARD = 1  # one rank's part of parameters, first dimensions divided and rounded up
    GATHERED = 2  # the same of all ranks: whole, and padded
    EIGHT_BIT = 3  # bitsandbytes' states, of small parameters in fp32
    OWN = 4  # what the framework says of one dimension of its own


class Size(NamedTuple):
    """How large a block is: the elements of some shapes, times bytes each; still symbolic."""

    form: Form
    shapes: tuple[Shape, ...]
    unit: float


def whole(shape: Shape, unit: float) -> Size:
    """Return the size of one tensor."""
    return Size(Form.WHOLE, (shape,), unit)


def of_framework(dim: Dim, unit: float = 1) -> Size:
    """Return the size of what the framework has its own number for."""
    return Size(Form.OWN, ((dim,),), unit)


class Role(IntEnum):
    """What a parameter is to its model."""

    PRODUCT = 0  # the weight of a matrix product: it can have an adapter, or be quantised
    HEAD = 1
    EMBEDDING = 2
    NORM = 3
    BIAS = 4
    ADAPTER = 5


class Parameter(NamedTuple):
    """One parameter tensor: its first dimension, which ranks share, the others, and its role."""

    rows: Dim
    cols: Shape = ()
    role: Role = Role.PRODUCT

    @property
    def shape(self) -> Shape:
        """All dimensions."""
        return (self.rows, *self.cols)

    @property
    def adapter(self) -> bool:
        """Whether it belongs to an adapter: trained while the rest is frozen."""
        return self.role is Role.ADAPTER


#: The parameter tensors of a layer, or of what is outside the layers, by name.
Parameters = dict[str, Parameter]


class Block:
    """A block of memory: which size (its index on the tape), what for, on which stream.

    What it is for may become clear after its birth: a tensor turns out to be saved, say.
    """

    __slots__ = ("kind", "size", "stream")

    def __init__(self, size: int, kind: Kind, stream: Stream = Stream.COMPUTE) -> None:
        self.size, self.kind, self.stream = size, kind, stream


class Event(NamedTuple):
    """So many blocks like this one are allocated (above 0) or freed (below).

    0 marks the last use of a block that somebody else frees.
    """

    block: Block
    change: int


class Storage:
    """A block that the graph holds, and how often.

    A `constant` belongs to the root but dies with its last use in the first layer's backward pass:
    a layer marks the place with an event of count 0.
    """

    __slots__ = ("block", "constant", "refs")

    def __init__(self, block: Block, refs: int = 1) -> None:
        self.block, self.refs, self.constant = block, refs, False


class Tape:
    """The events being written, and the distinct sizes that occur in them."""

    def __init__(self) -> None:
        self.sizes: dict[Size, int] = {}
        self.events: list[Event] = []

    def block(self, size: Size, kind: Kind, stream: Stream = Stream.COMPUTE) -> Block:
        """Return a new block; nothing is written."""
        return Block(self.sizes.setdefault(size, len(self.sizes)), kind, stream)

    def emit(self, size: Size, count: int, kind: Kind, stream: Stream = Stream.COMPUTE) -> None:
        """Allocate (count > 0) or free (count < 0) blocks that are known by what they are."""
        self.events.append(Event(self.block(size, kind, stream), count))

    def passing(self, size: Size, kind: Kind) -> None:
        """Allocate a block and free it at once."""
        self.emit(size, 1, kind)
        self.emit(size, -1, kind)

    def alloc(self, shape: Shape, unit: float, kind: Kind) -> Storage:
        """Allocate a tensor."""
        storage = self.unwritten(shape, unit, kind)
        self.events.append(Event(storage.block, 1))
        return storage

    def unwritten(self, shape: Shape, unit: float, kind: Kind) -> Storage:
        """Return a tensor whose birth is written elsewhere (by the block of layers before)."""
        return Storage(self.block(whole(shape, unit), kind))

    def hold(self, storage: Storage, kind: Kind | None = None) -> Storage:
        """Take one more reference; with `kind`, say what the block turned out to be for."""
        storage.refs += 1
        if kind is not None:
            storage.block.kind = kind
        return storage

    def drop(self, storage: Storage) -> None:
        """Give one reference back; the last one frees the block."""
        storage.refs -= 1
        if storage.refs == 0:
            self.events.append(Event(storage.block, -1))
        elif storage.refs == 1 and storage.constant:
            self.events.append(Event(storage.block, 0))
        elif storage.refs < 0:
            raise AssertionError("a storage was freed twice")

    @contextmanager
    def recording(self) -> Iterator[list[Event]]:
        """Collect the events written inside the `with` instead of appending them."""
        outer, self.events = self.events, []
        try:
            yield self.events
        finally:
            self.events = outer


def net(events: Iterable[Event], times: int) -> list[Event]:
    """Return what `times` repetitions of `events` leave behind, frees first: no false peak."""
    like: dict[tuple[int, Kind, Stream], Block] = {}
    total: dict[tuple[int, Kind, Stream], int] = {}
    for block, count in events:
        key = (block.size, block.kind, block.stream)
        like.setdefault(key, block)
        total[key] = total.get(key, 0) + count
    left = [Event(like[key], count * times) for key, count in total.items() if count]
    return sorted(left, key=lambda event: event.change > 0)
