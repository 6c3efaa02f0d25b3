"""ZeRO-3: which parameters are whole when, and gradients on their way to a rank's part.

The coordinator follows `runtime/zero/partitioned_param_coordinator.py` (deepspeed 0.19) once it
knows the order of modules, which is from the second step on; reduction follows `stage3.py`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmem.transformer.engine.dims import SCALAR
from trainmem.transformer.engine.tape import (
    GATHERED,
    GRADIENTS,
    Parameters,
    Role,
    of_framework,
    whole,
)
from trainmem.transformer.stacks.collectives import Progress
from trainmem.transformer.stacks.deepspeed_partitions import SHARE, UNIT, uneven
from trainmem.transformer.stacks.deepspeed_reduce import Bucketed, Placed, laid_out

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure
    from trainmem.transformer.writer import StepWriter

#: The parameters of one module, by number; of a module that only holds others, none.
Module = tuple[int, ...]

#: Modules of a layer that hold others, or have no parameters: itself, attention, MLP, activation.
HOLDERS = 4


def persistent(s: Structure) -> tuple[Placed, ...]:
    """Return the parameters that stay whole (`mark_persistent_parameters`)."""
    most = s.setting("stage3_param_persistence_threshold")
    return () if s.alone else tuple(p for p in laid_out(s) if p.elements <= most)


@dataclass(eq=False)
class Flight:
    """An all-gather: of which parameters, how many elements, whether they were copied out."""

    numbers: tuple[int, ...]
    elements: int
    landed: bool = False


class Coordinator:
    """Fetches a module's parameters before it runs, and more ahead; releases them after it.

    Parameters
    ----------
    elements
        Of each parameter, by number.
    stay
        The numbers of those that are always whole.
    order
        All modules as they run in a micro batch, forward and backward.
    ahead, live, reuse
        Elements that a fetch gathers ahead, beyond which it does not, and within which a module
        that runs again keeps its parameters.
    """

    def __init__(
        self,
        elements: tuple[int, ...],
        stay: frozenset[int],
        order: tuple[Module, ...],
        *,
        ahead: int,
        live: int,
        reuse: int,
    ) -> None:
        self.elements, self.stay, self.order = elements, stay, order
        self.ahead, self.live, self.reuse = ahead, live, reuse
        self.whole: set[int] = set()
        self.flying: dict[int, Flight] = {}  # by parameter that was not waited for yet
        self.bytes = self.highest = 0
        self.start()

    def start(self) -> None:
        """Begin a micro batch (`reset_step`): gathers in flight end, what is whole is forgotten."""
        for number in list(self.flying):
            if number in self.flying:
                self.wait(number)
            self.free(number)
        self.step = self.available = 0
        self.queue = deque((p, i) for i, module in enumerate(self.order) for p in module)
        self.used_last: dict[int, int] = {}

    def grow(self, elements: int) -> None:
        """Allocate so many elements of gathered parameters."""
        self.bytes += 2 * elements
        self.highest = max(self.highest, self.bytes)

    def gather(self, numbers: list[int]) -> None:
        """Start an all-gather: one parameter into itself, several into one flat buffer."""
        total = sum(self.elements[p] for p in numbers)
        self.available += total
        self.grow(total)
        flight = Flight(tuple(numbers), total)
        for number in numbers:
            self.flying[number] = flight

    def wait(self, number: int) -> None:
        """Copy a gather's parameters out of its buffer, which goes with the last one waited for."""
        flight = self.flying.pop(number)
        if not flight.landed:
            flight.landed = True
            self.whole.update(flight.numbers)
            if len(flight.numbers) > 1:
                self.grow(flight.elements)
        if len(flight.numbers) > 1 and flight not in self.flying.values():
            self.bytes -= 2 * flight.elements

    def free(self, number: int) -> None:
        """Give a whole parameter up."""
        if number in self.whole:
            self.whole.remove(number)
            self.bytes -= 2 * self.elements[number]
            self.available -= self.elements[number]

    def there(self, number: int) -> bool:
        """Whether a parameter is whole, or will be."""
        return number in self.stay or number in self.whole or number in self.flying

    def fetch(self, module: Module) -> None:
        """Gather what a module lacks, wait for it, and gather ahead (`fetch_sub_module`)."""
        missing = [p for p in module if not self.there(p)]
        if missing:
            self.gather(missing)
        for number in module:
            if number in self.flying:
                self.wait(number)
        fresh = {p for p in module if self.used_last.get(p, -1) < self.step}
        while self.queue and fresh:
            number, at = self.queue.popleft()
            self.used_last[number] = at
            fresh.discard(number)
        self.prefetch()
        self.step += 1

    def prefetch(self) -> None:
        """Gather the next parameters, up to a bucket of them and to the most that may live."""
        room = min(self.live - self.available, self.ahead)
        numbers: list[int] = []
        total = 0
        while self.queue and total < room:
            number, at = self.queue.popleft()
            self.used_last[number] = max(self.used_last.get(number, -1), at)
            if not self.there(number) and number not in numbers:
                numbers.append(number)
                total += self.elements[number]
        if numbers:
            self.gather(sorted(numbers))

    def release(self, module: Module) -> None:
        """Give up a module's parameters unless they are used again soon (`release_sub_module`)."""
        going = {
            p
            for p in module
            if p not in self.stay and self.used_last.get(p, -1) <= self.step and p in self.whole
        }
        passed = 0
        for later in self.order[self.step :] if going else ():
            if passed >= self.reuse:
                break
            going.difference_update(later)
            passed += sum(self.elements[p] for p in later)
        for number in going:
            self.free(number)


class Gathering(Bucketed):
    """Parameters whole for their modules; gradients reduced from the bucket into the part."""

    def __init__(self, writer: StepWriter) -> None:
        super().__init__(writer)
        s = self.s
        every = laid_out(s)
        number = {(p.layer, p.name): i for i, p in enumerate(every)}
        if s.tied:
            number[0, "head.weight"] = number[0, "embed"]
        trained = {i for i, p in enumerate(every) if s.trains(p.parameter)}
        self.trained = trained
        names = in_turn(s)
        self.layers = [
            modules([(name, number[layer, name]) for name in names])
            for layer in range(1, s.num_layers + 1)
        ]
        outside = modules([(name, number[0, name]) for name, _ in s.root])
        first = {number[0, n] for n, p in s.root if p.role is Role.EMBEDDING}
        self.first = [m for m in outside if first.issuperset(m)]
        self.rest = [m for m in outside if not first.issuperset(m)]
        if s.tied and s.last:
            self.rest.append((number[0, "embed"],))
        self.again = s.checkpoint
        stay = frozenset(number[p.layer, p.name] for p in persistent(s))
        self.coordinator = Coordinator(
            tuple(p.elements for p in every),
            stay,
            tuple(self.trace()),
            ahead=s.setting("stage3_prefetch_bucket_size"),
            live=s.setting("stage3_max_live_parameters"),
            reuse=s.setting("stage3_max_reuse_distance"),
        )
        self.end_of_group = self.mark(self.close)
        self.layer = 0
        self.level = 0  # units of memory that are written as gathered
        self.left: deque[Module] = deque()  # what follows in the group's backward pass
        self.open: Module = ()
        self.leftover: list[Module] = []
        self.missing = 0  # gradients of the open module that are still to come

    def trace(self) -> list[Module]:
        """Return all modules in the order in which they run."""
        order: list[Module] = [(), (), *self.first]
        for layer in self.layers:
            order += self.forward_of(layer)
        order += [*self.rest, (), *reversed(self.rest), ()]
        for layer in reversed(self.layers):
            order += [*(self.forward_of(layer) if self.again else ()), *self.backward_of(layer)]
        return [*order, *reversed(self.first)]

    @staticmethod
    def forward_of(layer: list[Module]) -> list[Module]:
        """Return a layer's modules as they run forward, with those that hold them."""
        return [*[()] * HOLDERS, *layer]

    @staticmethod
    def backward_of(layer: list[Module]) -> list[Module]:
        """Return them as they run backward."""
        return [*[()] * HOLDERS, *reversed(layer)]

    def begin(self, progress: Progress) -> None:
        """Before a micro batch."""
        super().begin(progress)
        self.layer = 0
        self.coordinator.start()
        self.write()

    def write(self) -> None:
        """Write how much is gathered now, and the most since the last time."""
        if self.s.alone:
            return
        highest, self.coordinator.highest = self.coordinator.highest, self.coordinator.bytes
        for level in (highest, self.coordinator.bytes):
            units = math.ceil(level / UNIT)
            if units != self.level:
                self.emit(whole(SCALAR, UNIT), units - self.level, GATHERED)
            self.level = units

    def run(self, order: list[Module]) -> None:
        """Fetch and release modules one after the other."""
        for module in order:
            self.coordinator.fetch(module)
            self.coordinator.release(module)
        self.write()

    def pre_forward(self, group: Parameters) -> None:
        """Fetch what a group needs: a whole layer's modules in turn."""
        if group is self.writer.layer:
            self.layer += 1
            self.run(self.forward_of(self.layers[self.layer - 1]))
            return
        order = [(), (), *self.first] if group is self.writer.embed_group else self.rest
        self.run(order[:-1])
        for module in order[-1:]:
            self.coordinator.fetch(module)
        self.write()

    def post_forward(self, group: Parameters) -> None:
        """Release the embedding, or the head."""
        if group is self.writer.layer:
            return
        order = self.first if group is self.writer.embed_group else self.rest
        for module in order[-1:]:
            self.coordinator.release(module)
        self.write()

    def pre_backward(
        self, group: Parameters, following: Parameters | None, gathered: bool = True
    ) -> None:
        """Fetch for a group's backward pass, as far as its first gradient."""
        if group is self.writer.layer:
            layer = self.layers[self.layer - 1]
            self.layer -= 1
            if self.again:
                self.run(self.forward_of(layer))
            self.left = deque(self.backward_of(layer))
        elif group is self.writer.embed_group:
            self.left = deque(reversed(self.first))
        else:
            self.left = deque([(), *reversed(self.rest), ()])
        self.advance()

    def advance(self) -> None:
        """Fetch the modules that follow, up to the next one that gets gradients."""
        self.missing = 0
        while self.left and not self.missing:
            self.open = self.left.popleft()
            self.coordinator.fetch(self.open)
            self.missing = sum(p in self.trained for p in self.open)
            if not self.missing:
                self.coordinator.release(self.open)
        self.write()

    def post_backward(self, group: Parameters, progress: Progress) -> None:
        """Mark the end of a group's backward pass: what has had no gradient ends, too."""
        self.tape.events.append(self.end_of_group)

    def close(self) -> None:
        """Release what is left of a group's backward pass."""
        while self.missing or self.left:
            if self.missing:
                self.leave()
            self.advance()

    def leave(self) -> None:
        """Release the open module after its backward pass.

        Not an embedding, for whose input no gradient comes: it is a leftover to the end of the pass
        (`release_backward_leftovers`).
        """
        if self.open in self.first:
            self.leftover.append(self.open)
        else:
            self.coordinator.release(self.open)

    def arrive(self, number: int) -> None:
        """Enter a gradient; the module is released after its last one."""
        self.enter(number)
        self.missing -= 1
        if not self.missing:
            self.leave()
            self.advance()

    def copy_content(self) -> None:
        """Copy the gradients by rank; one that divides is taken as it is."""
        in_place = (
            self.contiguous and self.used <= self.limit and not self.s.setting("reduce_scatter")
        )
        copy, units = whole(SCALAR, UNIT), self.pages(self.used)
        copies = not in_place
        if len(self.content) == 1 and copies:
            copy = of_framework(uneven(self.used))
            self.writer.noted = {**(self.writer.noted or {}), self.used: None}
        if copies:
            self.emit(copy, units, GRADIENTS)
        if self.s.setting("grad_accum_dtype") == "fp32":  # a rank's parts, cast
            self.tape.passing(of_framework(SHARE, 4 * self.used), GRADIENTS)
        if copies:
            self.emit(copy, -units, GRADIENTS)

    def finish(self) -> None:
        """Reduce the rest; then leftovers are released."""
        self.reduce()
        self.entered = 0
        for module in self.leftover:
            self.coordinator.release(module)
        self.leftover.clear()
        self.write()


def in_turn(s: Structure) -> list[str]:
    """Return the names of a layer's parameters in the order in which the layer uses them."""
    used = [row.weight.partition(".")[0] for row in s.kernels.layer(s) if row.weight]
    turn = {name: i for i, name in reversed(list(enumerate(used)))}
    return sorted(dict(s.layer), key=lambda name: turn.get(name.partition(".")[0], len(used)))


def modules(parameters: list[tuple[str, int]]) -> list[Module]:
    """Return modules with their parameters' numbers: those before the dot of their names."""
    found: dict[str, list[int]] = {}
    for name, number in parameters:
        found.setdefault(name.partition(".")[0], []).append(number)
    return [tuple(numbers) for numbers in found.values()]
