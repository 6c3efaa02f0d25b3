"""What exists around the passes: weights, optimizer states, gradients, the optimizer's step."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.transformer.architecture import Parameter
from trainmem.transformer.replay import (
    GATHERED,
    GRADIENTS,
    OPTIMIZER,
    TEMPORARY,
    WEIGHTS,
    Event,
    Precision,
    SizeKey,
    Tape,
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


def optimizer_units(precision: str, optimizer: str) -> tuple[float, ...]:
    """Bytes an element of each optimizer state; 0 stands for one scalar on the GPU."""
    unit = 4 if precision == "bf16_master" else UNITS[precision][0]
    states: dict[str, tuple[float, ...]] = {
        "adamw": (unit, unit, 0),
        "adamw_foreach": (unit, unit),
        "adamw_forloop": (unit, unit),
        "sgd": (),
        "sgd_momentum": (unit,),
        "adam8bit": (1, 1, 4 / 256, 4 / 256),  # and an fp32 scale per block of 256
    }
    master = (4.0,) if precision == "bf16_master" else ()
    return master + states[optimizer]


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything that decides the order of events, and nothing else."""

    family: str
    num_layers: int
    tied: bool
    grouped: bool
    one_kv: bool
    single: bool
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

    @property
    def gpt2(self) -> bool:
        """Whether the family is GPT-2; the others share one table."""
        return self.family == "gpt2"

    @property
    def kernel(self) -> str:
        """Attention kernel: flash has no fp32, and no fused fp32 kernel has grouped heads."""
        if self.attention == "flash" and self.precision == "fp32":
            return "math" if self.grouped else "efficient"
        return self.attention

    @property
    def delayed(self) -> bool:
        """Whether gradients stay whole until the last micro batch (always in ZeRO-1)."""
        return self.no_sync or self.sharding == "zero1"


@dataclass(slots=True)
class Segment:
    """A stretch of events, repeated `times`, with the phase and what happens in it."""

    phase: str
    label: str
    events: list[Event]
    times: int = 1
    layers: tuple[int, int] = (0, 0)


class Ledger:
    """Writes a step's events as segments; knows how the structure keeps its states."""

    def __init__(self, structure: Structure) -> None:
        self.s = s = structure
        self.tape = Tape()
        self.segments: list[Segment] = []
        self.rest_unit, self.weight_unit, self.grad_unit = UNITS[s.precision]
        self.precision = Precision(self.weight_unit, s.precision == "amp")
        self.layer, self.root = dict(s.layer), dict(s.root)
        self.embed_group, self.head_group = self.root, self.root
        if s.split:
            self.embed_group = {"embed": self.root["embed"]}
            self.head_group = {k: v for k, v in self.root.items() if k != "embed"}
        #: The root's parameters by the names its tables use: a tied head is the embedding.
        self.named = {"head.weight": self.root["embed"], **self.root} if s.tied else self.root

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

    def states(self) -> None:
        """Allocate what is there before the step: weights, optimizer, kept gradients, tokens."""
        s = self.s
        for parameters, count in ((self.layer, s.num_layers), (self.root, 1)):
            for p in parameters.values():
                self.emit(self.at_rest((p,), self.rest_unit), count, WEIGHTS)
                for unit in optimizer_units(s.precision, s.optimizer):
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

    def gradients_at_rest(self, sign: int) -> None:
        """Allocate or free the gradients as they stay between backward and optimizer."""
        s = self.s
        if s.fsdp:
            for group, count in self.groups():
                key: SizeKey = ("shard", tuple(group.values()), self.grad_unit)
                self.emit(key, sign * count, GRADIENTS)
        else:
            for parameters, count in ((self.layer, s.num_layers), (self.root, 1)):
                for rows, cols in parameters.values():
                    self.emit(("", rows + cols, self.grad_unit), sign * count, GRADIENTS)

    def groups(self) -> list[tuple[Parameters, int]]:
        """FSDP's groups of parameters, and how many of each."""
        groups = [(self.layer, self.s.num_layers), (self.embed_group, 1)]
        return [*groups, (self.head_group, 1)] if self.s.split else groups

    def optimizer(self) -> None:
        """Temporaries of the step, then the gradients go (unless kept)."""
        s = self.s
        root = dict(self.root)
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
                for parameters, count in ((self.layer, s.num_layers), (self.root, 1)):
                    for p in parameters.values():
                        self.emit(self.at_rest((p,), self.rest_unit), sign * count, TEMPORARY)
        if not s.keep:
            self.gradients_at_rest(-1)
        self.close("opt", "optimizer step")
