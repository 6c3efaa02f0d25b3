"""What exists around the passes: weights, optimizer states, gradients, the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainmem.transformer.architecture import Parameter
from trainmem.transformer.plan import zero_stage
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


def units_of(framework: str, precision: str) -> tuple[int, int, int]:
    """Bytes per element as in `UNITS`; Megatron adds gradients up in fp32."""
    rest, weight, gradient = UNITS[precision]
    return rest, weight, 4 if framework == "megatron" else gradient


#: Bytes per element of a quantised weight, its scales included: 4 bits and an fp32 scale per block
#: of 64; scales in 8 bits with an fp32 one per 256 (QLoRA's double quantisation); 8 bits.
QUANTIZED = {"nf4": 0.5 + 4 / 64, "nf4_double": 0.5 + 1 / 64 + 4 / (64 * 256), "int8": 1.0}

#: DeepSpeed's buckets in elements of the weights' type (`reduce_bucket_size`,
#: `allgather_bucket_size`, `stage3_prefetch_bucket_size`; defaults of runtime/zero/config.py).
REDUCE_BUCKET, GATHER_BUCKET, PREFETCH_BUCKET = 5e8, 5e8, 5e7


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
    framework: str = "torch"
    kernels: str = "transformers"
    gated: bool = True
    selective: bool = False
    every_2nd: bool = False
    parallel: bool = False  # tensor parallel
    sp: bool = False
    ring: bool = False  # context parallel
    first: bool = True
    last: bool = True
    held_layers: int = 0  # layers whose weights are here, where that is not `num_layers`
    waiting: int = 0
    adapted: tuple[str, ...] = ()  # products with an adapter; all other weights are frozen
    quantization: str = "none"
    offload: str = "none"
    experts: bool = False
    qk_norm: bool = False
    learned_positions: bool = False
    use_cache: bool = False
    padded_heads: bool = False  # head size not a multiple of 8
    unaligned_heads: bool = False  # nor of 4

    @property
    def zero(self) -> int:
        """Stage of ZeRO."""
        return zero_stage(self.sharding)

    @property
    def fsdp(self) -> bool:
        """Whether groups of parameters are gathered and given up (FSDP2, ZeRO-3)."""
        if self.framework == "deepspeed":
            return self.zero == 3
        return self.framework == "torch" and self.zero > 0

    @property
    def traced(self) -> bool:
        """Whether layers are those of transformers."""
        return self.kernels == "transformers" and self.family != "bert"

    @property
    def residual(self) -> str:
        """Dimensions of the residual stream: divided by tp too with sequence parallelism."""
        return "brh" if self.sp else "bsh"

    @property
    def adapter_unit(self) -> int:
        """Bytes per element of LoRA's weights in a product.

        peft makes them in fp32; FSDP2's mixed precision gathers all in bf16, and other libraries
        keep them as the base.
        """
        peft = self.framework == "torch" and self.kernels in ("transformers", "liger", "compiled")
        if self.precision == "bf16":
            return 4 if peft else 2
        return 4 if self.precision in ("amp", "fp32") else 2

    @property
    def adapter_at_rest(self) -> int:
        """Bytes per element of LoRA's weights, and of their gradients, outside products."""
        return 4 if self.precision == "mixed" else self.adapter_unit

    def trains(self, name: str) -> bool:
        """Whether a parameter is trained: all, or only the adapters."""
        return not self.adapted or ".lora_" in name

    @property
    def layers_here(self) -> int:
        """Layers whose weights are on this GPU."""
        return self.held_layers or self.num_layers

    @property
    def gpt2(self) -> bool:
        """Whether the family is GPT-2; the others share one table."""
        return self.family == "gpt2"

    @property
    def pieces(self) -> bool:
        """Whether the loss is torchtune's, to the byte.

        Other stacks' losses in pieces are known by what they save alone (`loss_pieces`).
        """
        torchtune = self.kernels in ("transformers", "liger", "torchtitan")
        return self.loss_head == "pieces" and torchtune and not (self.split or self.parallel)

    @property
    def kernel(self) -> str:
        """Attention kernel: flash has no fp32.

        No fused fp32 kernel has grouped heads, or head sizes that are not multiples of 4.
        """
        if self.attention == "flash" and self.precision == "fp32":
            return "math" if self.grouped or self.unaligned_heads else "efficient"
        return self.attention

    @property
    def direct_gradients(self) -> bool:
        """Whether the attention kernel's gradients have the layout of the products before it."""
        return self.kernel == "efficient" or (self.kernel == "flash" and not self.padded_heads)

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
        self.rest_unit, self.weight_unit, self.grad_unit = units_of(s.framework, s.precision)
        self.trained_unit = self.rest_unit
        if s.adapted:
            self.trained_unit = self.grad_unit = s.adapter_at_rest
        self.precision = Precision(self.weight_unit, s.precision == "amp")
        self.layer, self.root = dict(s.layer), dict(s.root)
        self.embed_group, self.head_group = self.root, self.root
        if s.split:
            self.embed_group = {k: v for k, v in self.root.items() if k == "embed"}
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
        for parameters, count in ((self.layer, s.layers_here), (self.root, 1)):
            for name, p in parameters.items():
                trained, unit = s.trains(name), self.unit_at_rest(name)
                if s.offload != "all":
                    self.emit(self.weight_key(p, unit), count, WEIGHTS)
                for state in self.optimizer_units_of(name) if s.offload == "none" else ():
                    self.emit(self.state_key(p, state), count, OPTIMIZER)
                if s.sharding == "zero1" and s.fsdp:
                    self.emit(("gather", (p,), self.gathered_unit(name)), count, GATHERED)
                if s.sharding == "ddp" and s.framework == "torch" and trained:
                    self.emit(("", "".join(p), self.grad_unit), count, GRADIENTS)
        if s.keep and s.offload == "none":  # offloaded, DeepSpeed keeps gradients on the CPU too
            self.gradients_at_rest(1)
        if s.framework == "megatron":
            self.dummy_gradients()
            if s.attention == "eager":  # the buffer that `baddbmm` takes and never reads
                self.emit(("", "bass", self.weight_unit), 1, TEMPORARY)
        elif s.framework == "deepspeed":
            self.buckets()
        elif s.kernels == "llm.c":
            self.emit(("", "bsh", 10), 1, TEMPORARY)
        if not s.learned_positions:
            self.emit(("", "d", 2), 2, WEIGHTS)
        self.emit(("", "bs", 8), 1, TEMPORARY)
        self.close("states", "weights, optimizer states and tokens")

    def state_key(self, p: Parameter, unit: float) -> SizeKey:
        """Size of an optimizer state; a unit of 0 is one scalar on the GPU."""
        if not unit:
            return ("", "", 4)
        if self.s.optimizer == "adam8bit":
            return ("8bit", "".join(p), unit)
        return self.at_rest((p,), unit)

    def gathered_unit(self, name: str) -> float:
        """Bytes per element of a gathered parameter: as at rest, unless FSDP2 casts them all."""
        mixed = self.rest_unit != self.weight_unit
        return self.weight_unit if mixed else self.unit_at_rest(name)

    def optimizer_units_of(self, name: str) -> tuple[float, ...]:
        """Bytes an element of each state that the optimizer keeps of a parameter."""
        s = self.s
        units = optimizer_units(s.precision, s.optimizer) if s.trains(name) else ()
        if s.adapted and s.precision == "bf16" and s.optimizer != "adam8bit":
            # Adapters have a type of their own.
            return tuple(u if u < 1 else float(self.unit_at_rest(name)) for u in units)
        return units

    def whole_bytes(self, elements: Callable[[Parameter], int]) -> float:
        """Weights, gradients and optimizer states of the whole model, each once, in bytes."""
        total = 0.0
        for parameters, count in ((self.layer, self.s.layers_here), (self.root, 1)):
            for name, p in parameters.items():
                gradient = self.grad_unit if self.s.trains(name) else 0
                each = self.unit_at_rest(name) + gradient + sum(self.optimizer_units_of(name))
                total += count * elements(p) * each
        return total

    def unit_at_rest(self, name: str) -> float:
        """Bytes per element of a weight outside gathering."""
        s = self.s
        if ".lora_" in name:
            return s.adapter_at_rest
        product = name.endswith(".weight") and not name.startswith(("norm", "head"))
        if s.quantization != "none" and product:
            return QUANTIZED[s.quantization]
        return self.rest_unit

    def weight_key(self, p: Parameter, unit: float) -> SizeKey:
        """Size of a weight: ZeRO below stage 3 and Megatron keep it whole."""
        if self.s.framework != "torch" and self.s.zero < 3:
            return ("", "".join(p), unit)
        return self.at_rest((p,), unit)

    def dummy_gradients(self) -> None:
        """Allocate Transformer Engine's cached gradients: one per shape of weight, never used.

        Gradients go into the main ones; autograd is handed these (`get_dummy_wgrad` in
        `transformer_engine/pytorch/module/base.py`). Queries, keys and values are one product, gate
        and up are one. The head's stays too, as published steady states show.
        """
        s = self.s
        fc1 = 2 * self.weight_unit if s.gated else self.weight_unit
        for dims, unit in (("wh", 2), ("hq", 2), ("fh", fc1), ("hf", 2)):
            self.emit(("", dims, unit), 1, GRADIENTS)
        if s.last:
            self.emit(("", "Vh", 2), 1, GRADIENTS)

    def buckets(self) -> None:
        """DeepSpeed's buckets, whole from the start."""
        unit = self.weight_unit
        second = PREFETCH_BUCKET if self.s.zero == 3 else GATHER_BUCKET
        for elements in (REDUCE_BUCKET, second):
            self.emit(("", "", elements * unit), 1, GATHERED)

    def at_rest(self, parameters: tuple[Parameter, ...], unit: float) -> SizeKey:
        """Size of a parameter (or its optimizer state) outside gathering."""
        if self.s.zero:
            return ("shard", parameters, unit)
        ((rows, cols),) = parameters
        return ("", rows + cols, unit)

    def gradients_at_rest(self, sign: int) -> None:
        """Allocate or free the gradients as they stay between backward and optimizer."""
        s = self.s
        if s.fsdp:
            for group, count in self.groups():
                trained = tuple(p for name, p in group.items() if s.trains(name))
                if trained:
                    key: SizeKey = ("shard*", trained, self.grad_unit)
                    self.emit(key, sign * count, GRADIENTS)
            return
        for parameters, count in ((self.layer, s.layers_here), (self.root, 1)):
            for name, (rows, cols) in parameters.items():
                if s.trains(name):
                    unit = self.grad_unit
                    divided = s.framework == "deepspeed" and s.zero == 2
                    key = ("shard", ((rows, cols),), unit) if divided else ("", rows + cols, unit)
                    self.emit(key, sign * count, GRADIENTS)

    def groups(self) -> list[tuple[Parameters, int]]:
        """FSDP's groups of parameters, and how many of each."""
        groups = [(self.layer, self.s.layers_here), (self.embed_group, 1)]
        return [*groups, (self.head_group, 1)] if self.s.split else groups

    def optimizer(self) -> None:
        """Temporaries of the step, then the gradients go (unless kept)."""
        s = self.s
        layer = [p for name, p in self.layer.items() if s.trains(name)]
        root = {name: p for name, p in self.root.items() if s.trains(name)}
        every = (*((p, s.layers_here) for p in layer), *((p, 1) for p in root.values()))
        first = [root.pop(name) for name in ("embed", "position") if name in root]
        one_by_one = [*first, *layer * min(s.layers_here, 2), *root.values()]
        if s.framework != "torch" or s.offload != "none":  # flat tensors, or on the CPU
            one_by_one, every = [], ()
        if s.precision == "bf16_master":  # an fp32 copy of one gradient at a time
            for p in one_by_one:
                self.emit(self.at_rest((p,), 4), 1, TEMPORARY)
                self.emit(self.at_rest((p,), 4), -1, TEMPORARY)
        if s.optimizer == "adamw_forloop":  # sqrt and its quotient, which lives to the next one's
            previous: SizeKey | None = None
            for p in one_by_one:
                key = self.at_rest((p,), self.trained_unit)
                self.emit(key, 2, TEMPORARY)
                self.emit(key, -1, TEMPORARY)
                if previous:
                    self.emit(previous, -1, TEMPORARY)
                previous = key
            if previous:
                self.emit(previous, -1, TEMPORARY)
        if s.optimizer == "adamw_foreach":  # the square roots of all second moments at once
            for sign in (1, -1):
                for p, count in every:
                    self.emit(self.at_rest((p,), self.trained_unit), sign * count, TEMPORARY)
        if not s.keep and not (s.offload == "all" and s.fsdp):
            self.gradients_at_rest(-1)
        self.close("opt", "optimizer step")
