"""Writes a step as segments of events; knows what exists around the passes.

Weights, optimizer states and gradients at rest, and the optimizer's step. What differs by who
keeps and shards the states is asked of the structure's `framework`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainmem.transformer.engine.dims import BS, SCALAR, D, Shape
from trainmem.transformer.engine.graph import Precision
from trainmem.transformer.engine.tape import (
    GATHERED,
    GRADIENTS,
    OPTIMIZER,
    TEMPORARY,
    WEIGHTS,
    Event,
    Form,
    Parameter,
    Parameters,
    Role,
    Size,
    Stream,
    Tape,
    whole,
)
from trainmem.transformer.optimizers import Optimizer, State, Updated
from trainmem.transformer.structure import UNITS, Structure

#: Bytes per element of a quantised weight, its scales included: 4 bits and an fp32 scale per block
#: of 64; scales in 8 bits with an fp32 one per 256 (QLoRA's double quantisation); 8 bits.
QUANTIZED = {"nf4": 0.5 + 4 / 64, "nf4_double": 0.5 + 1 / 64 + 4 / (64 * 256), "int8": 1.0}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of events, repeated `times`, with the phase and what happens in it."""

    phase: str
    label: str
    events: list[Event]
    times: int = 1
    layers: tuple[int, int] = (0, 0)


class StepWriter:
    """Writes a step's events as segments; knows how the structure keeps its states."""

    def __init__(self, structure: Structure) -> None:
        self.s = s = structure
        self.tape = Tape()
        self.emit = self.tape.emit
        self.segments: list[Segment] = []
        #: Rewrites a segment's events as it is closed: the collectives' hook on gradients.
        self.settle: Callable[[list[Event], int], list[Event]] = lambda events, layer: events
        self.noted: Any = None  # what the collectives noted for their framework's numbers
        self.rest_unit, self.weight_unit, gradient = UNITS[s.precision]
        self.grad_unit = s.framework.grad_unit or gradient
        self.trained_unit = self.rest_unit
        if s.frozen:
            self.trained_unit = self.grad_unit = s.adapter_at_rest
        self.precision = Precision(self.weight_unit, s.precision == "amp")
        self.layer, self.root = dict(s.layer), dict(s.root)
        self.embed_group, self.head_group = self.root, self.root
        if s.split:
            self.embed_group = {k: v for k, v in self.root.items() if k == "embed"}
            self.head_group = {k: v for k, v in self.root.items() if k != "embed"}
        #: The root's parameters by the names its tables use: a tied head is the embedding.
        self.named = {"head.weight": self.root["embed"], **self.root} if s.tied else self.root

    def parameters(self) -> Iterator[tuple[str, Parameter, int]]:
        """Yield every parameter with its name, and how often it is here."""
        for parameters, count in ((self.layer, self.s.held_layers), (self.root, 1)):
            for name, p in parameters.items():
                yield name, p, count

    def close(
        self, phase: str, label: str, times: int = 1, layers: tuple[int, int] = (0, 0)
    ) -> None:
        """Turn the events written since the last segment into one."""
        events = self.settle(self.tape.events, layers[0])
        self.segments.append(Segment(phase, label, events, times, layers))
        self.tape.events = []

    # ---- before the step ----
    def at_rest(self) -> None:
        """Allocate what is there before the step: weights, optimizer, kept gradients, tokens."""
        s = self.s
        s.framework.states(self)
        s.framework.buffers(self)
        if not s.learned_positions:
            self.emit(whole((D,), 2), 2, WEIGHTS)
        self.emit(whole(BS, 8), 1, TEMPORARY)
        self.close("states", "weights, optimizer states and tokens")

    def states_by_parameter(self) -> None:
        """Allocate weights, optimizer states and kept gradients, each parameter's by itself."""
        s = self.s
        for name, p, count in self.parameters():
            if s.offload != "all":
                self.emit(s.framework.weight_size(s, p, self.unit_at_rest(p)), count, WEIGHTS)
            for size in self.state_sizes(name, p) if s.offload == "none" else ():
                self.emit(size, count, OPTIMIZER)
            if s.sharding == "zero1" and s.gathers:
                gathered = Size(Form.GATHERED, (p.shape,), self.gathered_unit(p))
                self.emit(gathered, count, GATHERED)
            if s.sharding == "ddp" and s.framework.ddp_buckets and s.trains(p):
                self.emit(whole(p.shape, self.grad_unit), count, GRADIENTS)
        if s.keep and s.offload == "none":
            self.gradients_at_rest(1)

    def unit_at_rest(self, p: Parameter) -> float:
        """Bytes per element of a weight outside gathering."""
        if p.adapter:
            return self.s.adapter_at_rest
        if self.s.quantization != "none" and p.role is Role.PRODUCT:
            return QUANTIZED[self.s.quantization]
        return self.rest_unit

    def gathered_unit(self, p: Parameter) -> float:
        """Bytes per element of a gathered parameter: as at rest, unless FSDP2 casts them all."""
        mixed = self.rest_unit != self.weight_unit
        return self.weight_unit if mixed else self.unit_at_rest(p)

    def shared(self, shape: Shape, unit: float) -> Size:
        """Return the size of a parameter, or its optimizer state, divided as ZeRO divides it."""
        return Size(Form.SHARD, (shape,), unit) if self.s.zero else whole(shape, unit)

    def states_of(self, name: str, p: Parameter) -> list[State]:
        """Return the states that the optimizer keeps of a parameter, master weights first."""
        if not self.s.trains(p):
            return []
        master = [State(4.0)] if self.s.precision == "bf16_master" else []
        return [*master, *self.s.optimizer.of(name, p).states]

    def state_unit(self, p: Parameter, state: State) -> float:
        """Bytes per element of a state: in the type of master weights, else the parameter's own."""
        if state.unit is not None:
            return state.unit
        return 4 if self.s.precision == "bf16_master" else self.unit_at_rest(p)

    def state_sizes(self, name: str, p: Parameter) -> list[Size]:
        """Return the sizes of a parameter's optimizer states."""
        sizes = []
        for state in self.states_of(name, p):
            if state.scalar:
                sizes.append(whole(SCALAR, 4))
            elif state.form is Form.EIGHT_BIT:
                sizes.append(Size(Form.EIGHT_BIT, (p.shape,), self.state_unit(p, state)))
            else:
                sizes.append(self.shared(p.shape, self.state_unit(p, state)))
        return sizes

    def whole_bytes(self, elements: Callable[[Shape], int]) -> float:
        """Weights, gradients and optimizer states of the whole model, each once, in bytes."""
        total = 0.0
        for name, p, count in self.parameters():
            each = self.unit_at_rest(p) + (self.grad_unit if self.s.trains(p) else 0)
            each += sum(
                self.state_unit(p, state) for state in self.states_of(name, p) if not state.scalar
            )
            total += count * elements(p.shape) * each
        return total

    # ---- after the passes ----
    def gradients_at_rest(self, sign: int) -> None:
        """Allocate or free the gradients as they stay between backward and optimizer."""
        s = self.s
        if s.gathers:
            for group, count in self.groups():
                trained = tuple(p.shape for p in group.values() if s.trains(p))
                if trained:
                    size = Size(Form.SHARD, trained, self.grad_unit)
                    self.emit(size, sign * count, GRADIENTS, Stream.REDUCE)
            return
        for _, p, count in self.parameters():
            if s.trains(p):
                size = s.framework.gradient_size(s, p, self.grad_unit)
                self.emit(size, sign * count, GRADIENTS)

    def groups(self) -> list[tuple[Parameters, int]]:
        """Return groups of parameters that are gathered together, and how many of each."""
        groups = [(self.layer, self.s.held_layers), (self.embed_group, 1)]
        return [*groups, (self.head_group, 1)] if self.s.split else groups

    def optimizer_step(self) -> None:
        """Write the optimizer's step as the framework runs it."""
        self.s.framework.step(self)
        self.close("opt", "optimizer step")

    def update_by_parameter(self) -> None:
        """Temporaries of the step, then the gradients go (unless kept)."""
        s = self.s
        if not s.framework.flat_step and s.offload == "none":  # else flat tensors, or on the CPU
            self._updates()
        if not s.keep and not (s.offload == "all" and s.gathers):
            self.gradients_at_rest(-1)

    def _updates(self) -> None:
        """Write what updating every trained parameter allocates, by the optimizer that has it."""
        s = self.s
        if s.precision == "bf16_master":  # an fp32 copy of one gradient at a time
            for _, p in self._in_order():
                self.tape.passing(self.shared(p.shape, 4), TEMPORARY)
        each: dict[Optimizer, list[tuple[Size, int]]] = {}
        in_turn: dict[Optimizer, list[Size]] = {}
        for name, p, count in self.parameters():
            if s.trains(p):
                size = self.shared(p.shape, self.trained_unit)
                each.setdefault(s.optimizer.of(name, p), []).append((size, count))
        for name, p in self._in_order():
            size = self.shared(p.shape, self.trained_unit)
            in_turn.setdefault(s.optimizer.of(name, p), []).append(size)
        for optimizer, sizes in each.items():
            optimizer.step(self, Updated(in_turn[optimizer], sizes))

    def _in_order(self) -> list[tuple[str, Parameter]]:
        """Return the trained parameters as the optimizer meets them, of the layers two."""
        s = self.s
        layer = [(name, p) for name, p in self.layer.items() if s.trains(p)]
        root = {name: p for name, p in self.root.items() if s.trains(p)}
        first = [(name, root.pop(name)) for name in ("embed", "position") if name in root]
        return [*first, *layer * min(s.held_layers, 2), *root.items()]
