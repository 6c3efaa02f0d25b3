"""What decides the order of a step's events, and nothing else: the key of compiled programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmem.transformer.engine.dims import BSH, B, H, R, Shape
from trainmem.transformer.engine.tape import Parameter

if TYPE_CHECKING:
    from trainmem.transformer.families.family import Code
    from trainmem.transformer.optimizers import Optimizer
    from trainmem.transformer.stacks.framework import Framework
    from trainmem.transformer.stacks.kernels import Kernels

#: Bytes per element by precision: weights at rest, weights as computed with, gradients at rest.
UNITS = {
    "mixed": (4, 2, 4),
    "amp": (4, 4, 4),
    "bf16_master": (2, 2, 2),
    "bf16": (2, 2, 2),
    "fp32": (4, 4, 4),
}


def zero_stage(sharding: str) -> int:
    """Return the ZeRO stage that a value of `sharding` says; 0 for `none` and `ddp`."""
    return int(sharding.removeprefix("zero")) if sharding.startswith("zero") else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Everything that decides the order of events.

    Attributes
    ----------
    code, framework, kernels, optimizer
        The objects that write the events: whose layers, who keeps and shards the states, whose
        kernels run, who updates.
    num_layers
        Layers that a micro batch passes at once on this pipeline stage.
    held_layers, first, last, waiting
        The stage: layers whose weights it holds, whether it has the embedding, and the head;
        chunks of layers that wait for their backward pass.
    layer, root
        Parameters of one layer, and of what is outside the layers here.
    tied
        Whether the head is the embedding.
    grouped, one_kv
        Whether there are fewer key/value heads than heads, and whether there is a single one.
    padded_heads, unaligned_heads
        Whether the head size is no multiple of 8, nor of 4.
    gated, experts, qk_norm, learned_positions
        What a layer consists of: a gate in the MLP, a mixture of experts, norms of queries and
        keys, a table of positions.
    adapted, quantization
        Products with an adapter (all other weights are then frozen), and how frozen ones are kept.
    sharding, alone, split, offload, reduce_unit
        What is divided by the ranks; whether there is a single one; whether embedding and head are
        groups of their own; what is in CPU memory; bytes per element of reduced gradients.
    precision
        Types of weights, computation and optimizer.
    attention, dropout, use_cache
        The kernel asked for; whether outputs or attention weights are dropped; whether keys and
        values are kept.
    loss_head, chunks
        How logits become a loss; how many of its chunks are run (1, 2, or 3 for more).
    checkpoint, selective, every_2nd
        Whether layers are recomputed: each, by operation, every second.
    micros, no_sync, keep
        Micro batches that are written; whether gradients stay whole until the last; whether
        gradients exist before the step.
    parallel, sequence_parallel, context_parallel
        Whether there is tensor parallelism, with divided norms and residuals, and context
        parallelism.
    single
        Whether a micro batch is a single sequence.
    settings, elements
        What the plan sets of the framework's own options; and, where the framework's order depends
        on them, the elements of each parameter's shape.
    """

    code: Code
    framework: Framework
    kernels: Kernels
    optimizer: Optimizer
    num_layers: int
    held_layers: int
    first: bool
    last: bool
    waiting: int
    layer: tuple[tuple[str, Parameter], ...]
    root: tuple[tuple[str, Parameter], ...]
    tied: bool
    grouped: bool
    one_kv: bool
    padded_heads: bool
    unaligned_heads: bool
    gated: bool
    experts: bool
    qk_norm: bool
    learned_positions: bool
    adapted: tuple[str, ...]
    quantization: str
    sharding: str
    alone: bool
    split: bool
    offload: str
    reduce_unit: int
    precision: str
    attention: str
    dropout: bool
    use_cache: bool
    loss_head: str
    chunks: int
    checkpoint: bool
    selective: bool
    every_2nd: bool
    micros: int
    no_sync: bool
    keep: bool
    parallel: bool
    sequence_parallel: bool
    context_parallel: bool
    single: bool
    settings: tuple[tuple[str, Any], ...] = ()
    elements: tuple[tuple[Shape, int], ...] = ()

    def setting(self, name: str) -> Any:
        """Return one of the framework's own options: as the plan sets it, or its default."""
        return dict(self.settings).get(name, self.framework.settings[name].default)

    @property
    def zero(self) -> int:
        """Stage of ZeRO."""
        return zero_stage(self.sharding)

    @property
    def gathers(self) -> bool:
        """Whether groups of parameters are gathered and given up."""
        return self.framework.gathers(self.zero)

    @property
    def exact(self) -> bool:
        """Whether every layer is as its own library runs it; else tables are of a mean layer."""
        return self.kernels.own_code and self.code.exact

    @property
    def residual(self) -> Shape:
        """Shape of the residual stream: divided by tp too with sequence parallelism."""
        return (B, R, H) if self.sequence_parallel else BSH

    @property
    def frozen(self) -> bool:
        """Whether only adapters are trained."""
        return bool(self.adapted)

    def trains(self, parameter: Parameter) -> bool:
        """Whether a parameter is trained: all, or only the adapters."""
        return not self.adapted or parameter.adapter

    @property
    def adapter_unit(self) -> int:
        """Bytes per element of LoRA's weights in a product.

        peft makes them in fp32; FSDP2's mixed precision gathers all in bf16, and other libraries
        keep them as the base.
        """
        if self.precision == "bf16":
            return 4 if self.framework.peft and self.kernels.peft else 2
        return 4 if self.precision in ("amp", "fp32") else 2

    @property
    def adapter_at_rest(self) -> int:
        """Bytes per element of LoRA's weights, and of their gradients, outside products."""
        return 4 if self.precision == "mixed" else self.adapter_unit

    @property
    def loss_in_pieces(self) -> bool:
        """Whether the loss is torchtune's, to the byte.

        Other stacks' losses in pieces are known by what they save alone (`loss_pieces`).
        """
        in_groups = self.split and not self.framework.by_module
        exact = self.kernels.exact_pieces and not (in_groups or self.parallel)
        return self.loss_head == "pieces" and exact

    @property
    def attention_kernel(self) -> str:
        """Attention kernel: flash has no fp32.

        No fused fp32 kernel has grouped heads, or head sizes that are not multiples of 4.
        """
        if self.attention == "flash" and self.precision == "fp32":
            return "math" if self.grouped or self.unaligned_heads else "efficient"
        return self.attention

    @property
    def direct_gradients(self) -> bool:
        """Whether the attention kernel's gradients have the layout of the products before it."""
        kernel = self.attention_kernel
        return kernel == "efficient" or (kernel == "flash" and not self.padded_heads)

    @property
    def delayed(self) -> bool:
        """Whether gradients stay whole until the last micro batch (always in ZeRO-1)."""
        return self.no_sync or self.sharding == "zero1"
