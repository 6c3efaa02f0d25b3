"""Frameworks: who keeps and shards the states, with which buffers and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from trainmem.transformer.engine.dims import Dim
from trainmem.transformer.engine.tape import Form, Parameter, Size, whole
from trainmem.transformer.option import Option
from trainmem.transformer.rule import Rule
from trainmem.transformer.stacks.collectives import Collectives

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure
    from trainmem.transformer.writer import StepWriter

#: The numbers of a framework's own dimensions, by dimension: a number, or one a configuration.
Numbers = Mapping[Dim, Any]


class Framework:
    """Who keeps and shards the states; a subclass in each stack's file, one object in `FRAMEWORKS`.

    The base class keeps weights whole below ZeRO-3, gradients in buffers that exist before the
    step, and updates flat tensors, which allocates nothing.

    Attributes
    ----------
    name, label
        What to call it, in code and for people.
    fsdp2
        Whether it shards groups of parameters as FSDP2 does, with its mixed precision.
    gathers_from, shards_weights_from
        The ZeRO stage from which groups of parameters are gathered and given up; and from which a
        rank keeps a shard of the weights.
    grad_unit
        Bytes per element of gradients, where they have a type of their own.
    adds_to_main
        Whether weight gradients are added to a main gradient as they are made.
    keeps_gradients
        Whether gradients exist before the step.
    ddp_buckets
        Whether DDP's buckets are beside the gradients.
    flat_step
        Whether the optimizer's step works on flat tensors, which allocates nothing.
    kernels
        The kernels that it runs, where it runs no others and they run nowhere else.
    precision
        The precision that it has, where it has no other.
    one_stage
        The ZeRO stage that any sharding is, where it has no other.
    peft, adapters, adapters_with_master
        Whether adapters are peft's; whether they are covered at all, and with master weights.
    offloads, own_loss
        Whether states can be in CPU memory; whether the loss is its own, by the vocabulary.
    one_stream, reserving
        How the allocator is used: all on one stream, or by a row of `levels.RESERVED`.
    fits_below
        Share of the card below which a step fits, where it differs.
    remark
        What isn't counted, said of every step that is uncertain.
    stage_words
        What a ZeRO stage is called, where it has a name of its own.
    cpu_optimizer
        Whether it can step on the CPU with the optimizer's states there.
    rules
        Which plans it does not have.
    settings
        Options that it has alone, by name: what a plan's `settings` may say.
    by_module
        Whether what it allocates around the passes differs from layer to layer, by how many
        elements each module has. Layers are then written out, embedding and head apart.
    own_masters
        Whether it keeps master weights itself, whoever updates them.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    fsdp2: ClassVar[bool] = False
    gathers_from: ClassVar[int] = 4
    shards_weights_from: ClassVar[int] = 3
    grad_unit: ClassVar[int | None] = None
    adds_to_main: ClassVar[bool] = False
    keeps_gradients: ClassVar[bool] = True
    ddp_buckets: ClassVar[bool] = False
    flat_step: ClassVar[bool] = True
    kernels: ClassVar[str] = ""
    precision: ClassVar[str] = "bf16_master"
    one_stage: ClassVar[int | None] = None
    peft: ClassVar[bool] = False
    adapters: ClassVar[bool] = False
    adapters_with_master: ClassVar[bool] = True
    offloads: ClassVar[bool] = True
    own_loss: ClassVar[bool] = False
    one_stream: ClassVar[bool] = False
    reserving: ClassVar[str] = ""
    fits_below: ClassVar[float] = 0.80
    remark: ClassVar[str] = ""
    stage_words: ClassVar[Mapping[int, str]] = {}
    cpu_optimizer: ClassVar[bool] = False
    rules: ClassVar[tuple[Rule, ...]] = ()
    settings: ClassVar[Mapping[str, Option]] = {}
    by_module: ClassVar[bool] = False
    own_masters: ClassVar[bool] = False

    def resolved(
        self, settings: tuple[tuple[str, Any], ...], hidden: int
    ) -> tuple[tuple[str, Any], ...]:
        """Return settings of a plan with words that depend on the hidden size as numbers."""
        return settings

    def gathers(self, zero: int) -> bool:
        """Whether groups of parameters are gathered and given up at a ZeRO stage."""
        return zero >= self.gathers_from

    def weight_size(self, s: Structure, p: Parameter, unit: float) -> Size:
        """Return the size of a weight as a rank keeps it."""
        if s.zero and s.zero >= self.shards_weights_from:
            return Size(Form.SHARD, (p.shape,), unit)
        return whole(p.shape, unit)

    def gradient_size(self, s: Structure, p: Parameter, unit: float) -> Size:
        """Return the size of a gradient as it stays to the optimizer's step."""
        return whole(p.shape, unit)

    def collectives(self, write: StepWriter) -> Collectives:
        """Return what it allocates around the passes."""
        return Collectives(write)

    def states(self, write: StepWriter) -> None:
        """Allocate weights, optimizer states and gradients as they are before the step."""
        write.states_by_parameter()

    def buffers(self, write: StepWriter) -> None:
        """Allocate what else is there before the step."""

    def step(self, write: StepWriter) -> None:
        """Write what the optimizer's step allocates, and the gradients that go with it."""
        write.update_by_parameter()

    def numbers(self, s: Structure, written: Any, n: Any, rank: int | None) -> list[Numbers]:
        """Return the numbers of dimensions of its own, once for each rank that may hold most.

        Parameters
        ----------
        s
            The structure.
        written
            What the collectives noted in `StepWriter.noted` as they wrote the step.
        n
            GPUs that share the states: a number, or an array of them.
        rank
            The one rank that is asked about; None for all that may hold most.
        """
        return [{}]


#: A framework with the sharding that Megatron calls its distributed optimizer, and no other.
DISTRIBUTED_OPTIMIZER = Rule(
    name="a distributed optimizer",
    fields=("framework", "sharding"),
    broken=lambda p: p.zero_stage > 1,
    message=lambda p: (
        f"framework {p.framework!r} has sharding 'zero1' (distributed optimizer), 'ddp' or "
        f"'none', got {p.sharding!r}"
    ),
    grants={"sharding": ("zero1", "ddp", "none")},
)
