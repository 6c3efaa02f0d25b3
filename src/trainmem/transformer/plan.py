"""How a training step is run: one table of options, from which validation and controls derive."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from typing import Any

FSDP = "torch 2.13, torch/distributed/fsdp/_fully_shard"
HF = "transformers 5.24"
TORCH = "torch 2.13"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: what a field of :class:`Plan` may be.

    Attributes
    ----------
    name
        Field of `Plan`.
    default
        What most people run.
    choices
        Allowed values with a short label each; empty for numbers.
    bounds
        Lowest and highest value of a number; (0, 0) where there are choices.
    label, help, source
        For people: a name, one sentence, and where the behaviour was read or seen.
    """

    name: str
    default: Any
    label: str
    help: str
    source: str
    choices: tuple[tuple[Any, str], ...] = ()
    bounds: tuple[int, int] = (0, 0)

    def check(self, value: Any) -> Any:
        """Return `value` in its own type, or raise a `ValueError` that names the option."""
        if not self.choices:
            low, high = self.bounds
            try:
                number = operator.index(value)
            except TypeError:
                number = low - 1
                if isinstance(value, float) and value.is_integer():
                    number = int(value)
            if isinstance(value, bool) or not low <= number <= high:
                raise ValueError(
                    f"{self.name} must be an integer from {low} to {high}, got {value!r}"
                )
            return number
        for choice, _ in self.choices:
            if type(value) is type(choice) and value == choice:
                return choice
        allowed = ", ".join(repr(choice) for choice, _ in self.choices)
        raise ValueError(f"{self.name} must be one of {allowed}, got {value!r}")


_ON_OFF = ((False, "no"), (True, "yes"))

OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("num_gpus", 8, "GPUs", "Data-parallel ranks; sharding divides the states by them.",
               FSDP, bounds=(1, 1_000_000)),
        Option("micro_batch", 1, "Micro batch", "Sequences per GPU in one forward pass.",
               HF, bounds=(1, 65_536)),
        Option("seq_length", 4096, "Sequence length", "Tokens per sequence.",
               HF, bounds=(1, 2**24)),
        Option("sharding", "zero3", "Sharding",
               "What is divided by the ranks: nothing, optimizer states (1), gradients too (2), "
               "weights too (3).",
               FSDP,
               (("none", "one GPU"), ("ddp", "replicated (DDP)"), ("zero1", "ZeRO-1"),
                ("zero2", "ZeRO-2"), ("zero3", "ZeRO-3 (FSDP2)"))),
        Option("precision", "mixed", "Precision",
               "Types of weights, computation and optimizer.",
               TORCH,
               (("mixed", "bf16 computation over fp32 shards (FSDP2 mixed precision)"),
                ("amp", "bf16 autocast over fp32 weights"),
                ("bf16_master", "bf16 weights and gradients, fp32 master in the optimizer"),
                ("bf16", "everything in bf16"),
                ("fp32", "everything in fp32"))),
        Option("optimizer", "adamw", "Optimizer",
               "Which states it keeps and what its step allocates.",
               f"{TORCH}, torch/optim; bitsandbytes, optim/optimizer.py (8-bit: not traced)",
               (("adamw", "AdamW, fused"), ("adamw_foreach", "AdamW, foreach"),
                ("adamw_forloop", "AdamW, one parameter at a time"),
                ("sgd", "SGD without momentum"), ("sgd_momentum", "SGD with momentum"),
                ("adam8bit", "8-bit AdamW (bitsandbytes)"))),
        Option("attention", "flash", "Attention kernel",
               "Flash never stores the scores; eager does, and they grow with the length squared. "
               "In fp32 PyTorch takes its memory-efficient kernel in place of flash, or, with "
               "grouped heads, none: the scores are stored.",
               HF, (("flash", "flash (SDPA)"), ("eager", "eager"))),
        Option("loss_head", "transformers", "Loss head",
               "How logits become a loss: whole fp32 logits, one chunk of tokens at a time "
               "(recomputed in backward), or fused with the head, gradients made in forward.",
               f"{HF}, loss_utils.py; Liger-Kernel, fused_linear_cross_entropy.py",
               (("transformers", "full fp32 logits"), ("chunked", "a chunk of tokens at a time"),
                ("fused", "fused linear cross entropy"))),
        Option("loss_chunk", 1024, "Loss chunk", "Tokens in one chunk of the chunked loss head.",
               "torchtune, linear_cross_entropy.py", bounds=(1, 2**20)),
        Option("checkpointing", "full", "Activation checkpointing",
               "Keep only each layer's input and recompute the layer in backward.",
               "torch.utils.checkpoint, non-reentrant",
               (("none", "none"), ("full", "every layer"))),
        Option("accumulation", 1, "Gradient accumulation", "Micro batches per optimizer step.",
               TORCH, bounds=(1, 65_536)),
        Option("no_sync", False, "Accumulate without reducing",
               "Keep whole gradients until the last micro batch (ZeRO-1 always does).",
               FSDP, _ON_OFF),
        Option("keep_gradients", False, "Keep gradient buffers",
               "zero_grad(set_to_none=False): gradients stay allocated through the forward pass.",
               TORCH, _ON_OFF),
        Option("wrapping", "layers", "FSDP groups",
               "Embedding and head gathered for the whole step, or in groups of their own.",
               FSDP, (("layers", "with the root"), ("split", "apart"))),
        Option("reduce_dtype", "float32", "Gradient reduction type",
               "Type in which FSDP2 mixed precision reduces gradients.",
               FSDP, (("float32", "fp32"), ("bfloat16", "bf16"))),
        Option("dropout", False, "Dropout", "Dropout above zero (GPT-2 only): masks are kept.",
               HF, _ON_OFF),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """How a training step is run; every field is described in `OPTIONS`.

    Raises
    ------
    ValueError
        Naming the option, its value and what is allowed, for a value outside the table or a
        combination that is not covered.
    """

    num_gpus: int = OPTIONS["num_gpus"].default
    micro_batch: int = OPTIONS["micro_batch"].default
    seq_length: int = OPTIONS["seq_length"].default
    sharding: str = OPTIONS["sharding"].default
    precision: str = OPTIONS["precision"].default
    optimizer: str = OPTIONS["optimizer"].default
    attention: str = OPTIONS["attention"].default
    loss_head: str = OPTIONS["loss_head"].default
    loss_chunk: int = OPTIONS["loss_chunk"].default
    checkpointing: str = OPTIONS["checkpointing"].default
    accumulation: int = OPTIONS["accumulation"].default
    no_sync: bool = OPTIONS["no_sync"].default
    keep_gradients: bool = OPTIONS["keep_gradients"].default
    wrapping: str = OPTIONS["wrapping"].default
    reduce_dtype: str = OPTIONS["reduce_dtype"].default
    dropout: bool = OPTIONS["dropout"].default

    def __post_init__(self) -> None:
        for field in fields(self):
            value = OPTIONS[field.name].check(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        for broken, message in _conflicts(self):
            if broken:
                raise ValueError(message)

    @property
    def fsdp(self) -> bool:
        """Whether FSDP2 shards the states."""
        return self.sharding.startswith("zero")


def _conflicts(plan: Plan) -> tuple[tuple[bool, str], ...]:
    fsdp = plan.sharding.startswith("zero")
    return (
        (
            plan.sharding == "none" and plan.num_gpus > 1,
            f"sharding 'none' is for one GPU, got num_gpus {plan.num_gpus}; "
            "use 'ddp' or 'zero1' to 'zero3'",
        ),
        (
            plan.sharding == "ddp" and plan.num_gpus == 1,
            "sharding 'ddp' needs num_gpus of 2 or more, got 1; use 'none'",
        ),
        (
            plan.precision == "mixed" and not fsdp,
            "precision 'mixed' is FSDP2's and needs sharding 'zero1', 'zero2' or 'zero3'; "
            f"with sharding {plan.sharding!r} use 'amp' or 'bf16_master'",
        ),
        (
            plan.wrapping == "split" and not fsdp,
            f"wrapping 'split' needs sharding 'zero1', 'zero2' or 'zero3', got {plan.sharding!r}",
        ),
        (
            plan.reduce_dtype != "float32" and plan.precision != "mixed",
            f"reduce_dtype {plan.reduce_dtype!r} needs precision 'mixed', got {plan.precision!r}",
        ),
        (
            plan.precision == "bf16_master" and plan.optimizer != "adamw",
            f"precision 'bf16_master' needs optimizer 'adamw', got {plan.optimizer!r}",
        ),
        (
            plan.no_sync and plan.sharding == "none",
            "no_sync needs more than one rank: sharding 'ddp' or 'zero1' to 'zero3'",
        ),
        (
            fsdp and plan.optimizer == "adam8bit",
            "optimizer 'adam8bit' is not covered with sharding 'zero1' to 'zero3'; "
            "use 'none' or 'ddp'",
        ),
    )
