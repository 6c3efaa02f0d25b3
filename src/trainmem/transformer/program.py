"""A schedule compiled to counts of symbolic sizes, and the sizes of a configuration.

The schedule is run once for a structure. A configuration is then a product of two matrices: blocks
of each size alive after each event, and bytes of each size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmem.transformer.architecture import EXPERTS, TRACED, Architecture
from trainmem.transformer.blocks import PIECES
from trainmem.transformer.kernels import SELECTED
from trainmem.transformer.layout import Stage, check_layout, stages
from trainmem.transformer.plan import Plan
from trainmem.transformer.replay import GRADIENTS, KINDS, LOGITS, RECOMPUTED, SizeKey, net
from trainmem.transformer.schedule import walk
from trainmem.transformer.states import Segment, Structure

#: The CUDA caching allocator rounds every block up to this many bytes.
ROUND = 512

#: Elements from which bitsandbytes keeps a parameter's states in 8 bits (`min_8bit_size`).
MIN_8BIT = 4096

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Program:
    """A compiled schedule: counts of each size alive after every event.

    Attributes
    ----------
    sizes
        The distinct block sizes, symbolic.
    segments
        The stretches of events.
    size, count, kind
        One entry an event, middle layers collapsed.
    start
        Index of the first event of each segment, and the end.
    rows
        Events after which memory falls, or a segment ends: the only ones that can be a peak.
    alive
        Blocks of each size alive after those events, shape (rows, sizes).
    adapted
        Whether only adapters are trained.
    """

    sizes: tuple[SizeKey, ...]
    segments: tuple[Segment, ...]
    size: NDArray[np.int64]
    count: NDArray[np.int64]
    kind: NDArray[np.int64]
    start: NDArray[np.int64]
    rows: NDArray[np.int64]
    alive: Floats
    adapted: bool = False

    def highest(self, totals: Floats) -> int:
        """Row of the peak; of equal ones the first in the last micro batch."""
        rows = np.flatnonzero(totals >= totals.max())
        segments = np.searchsorted(self.start, self.rows[rows], side="right") - 1
        final = [self.segments[i].phase != "other" for i in segments]
        return int(rows[int(np.argmax(final))])

    def composition(self, row: int) -> Floats:
        """Blocks of each kind and size alive after event `rows[row]`, shape (kinds, sizes)."""
        n = int(self.rows[row]) + 1
        flat = self.kind[:n] * len(self.sizes) + self.size[:n]
        total = np.bincount(flat, self.count[:n], minlength=len(KINDS) * len(self.sizes))
        return total.reshape(len(KINDS), len(self.sizes)).astype(np.float64)

    def pools(self, sizes: Floats) -> dict[str, int]:
        """Peak within each of the allocator's pools, bytes: one per CUDA stream.

        FSDP2 allocates gather buffers on streams of their own, and reduced gradients on another
        (`foreach_all_gather` and `foreach_reduce` in `_fsdp_collectives.py`).
        """
        own = np.array([how.endswith("*") for how, _, _ in self.sizes])[self.size]
        gradients = self.kind == GRADIENTS
        change = self.count * sizes[self.size]
        pools = {"compute": ~own, "gather": own & ~gradients, "reduce": own & gradients}
        peaks = {name: np.cumsum(change[mask]).max(initial=0) for name, mask in pools.items()}
        return {name: int(value) for name, value in peaks.items()}

    def fragments(self, sizes: Floats, varying: bool = False) -> float:
        """Bytes cut up before the logits come, which cannot serve them.

        One copy of the logits in the weights' type and, where all weights are trained, what
        recomputing one layer under checkpointing leaves. With varying lengths all that the loss
        needs, for blocks of another length do not serve it.
        """

        def highest(kind: int) -> float:
            of_kind = np.where(self.kind == kind, self.count * sizes[self.size], 0)
            return float(np.cumsum(of_kind).max(initial=0))

        if varying:
            return highest(LOGITS)
        logits = [sizes[i] for i, key in enumerate(self.sizes) if key[1] == "bsV" and key[2] == 2]
        return float(sum(logits)) + (0.0 if self.adapted else highest(RECOMPUTED))


@lru_cache(maxsize=1024)
def compile_structure(structure: Structure) -> Program:
    """Run the schedule once for a structure."""
    ledger = walk(structure)
    segments = tuple(ledger.segments)
    events: list[list[int]] = []
    start = []
    for segment in segments:
        start.append(len(events))
        events += segment.events if segment.times == 1 else net(segment.events, segment.times)
    start.append(len(events))
    size, count, kind = np.array(events, dtype=np.int64).T
    sizes = tuple(ledger.tape.sizes)
    falls = np.flatnonzero((count[:-1] > 0) & (count[1:] < 0))
    ends = np.array(start[1:]) - 1
    rows = np.union1d(falls, ends[ends >= 0])
    alive = np.zeros((len(events), len(sizes)))
    alive[np.arange(len(events)), size] = count
    np.cumsum(alive, axis=0, out=alive)
    return Program(
        sizes,
        segments,
        size,
        count,
        kind,
        np.array(start),
        rows,
        alive[rows],
        bool(structure.adapted),
    )


#: Families of which some kernels' tables describe the layers, and which: litgpt writes Gemma's norm
#: (1 + w, in fp32), GeGLU and untied head with Llama's tensors (`RMSNorm`, `GemmaMLP` in its
#: model.py), and was measured on it and on GPT-NeoX's block.
DESCRIBED = {"gemma": ("litgpt",), "neox": ("litgpt",)}


def check_kernels(a: Architecture, plan: Plan) -> None:
    """Refuse a model that the plan's kernels or axes do not have.

    Raises
    ------
    ValueError
        Naming the option, its value and what is covered.
    """
    check_layout(a, plan)
    if plan.kernels == "transformers" and a.family not in (*TRACED, *EXPERTS, "bert"):
        raise ValueError(
            f"family {a.family!r} is not covered with kernels 'transformers' "
            f"(covered: {', '.join((*TRACED, *EXPERTS))}, bert)"
        )
    if plan.kernels not in DESCRIBED.get(a.family, (plan.kernels,)):
        raise ValueError(
            f"family {a.family!r} is not covered with kernels {plan.kernels!r} "
            f"(covered: {', '.join(DESCRIBED[a.family])})"
        )
    if a.family == "bert" and (plan.loss_head != "compiled" or plan.kernels != "transformers"):
        raise ValueError(
            "bert, which has a few classes for logits, needs loss_head 'compiled' and "
            f"kernels 'transformers', got {plan.loss_head!r}, {plan.kernels!r}"
        )
    if plan.kernels == "llm.c" and a.family != "gpt2":
        raise ValueError(f"kernels 'llm.c' are GPT-2's, got family {a.family!r}")
    if a.family == "gpt2" and plan.kernels not in ("transformers", "llm.c"):
        raise ValueError(f"kernels {plan.kernels!r} are not covered for gpt2; use 'transformers'")
    if a.experts and plan.lora_rank:
        raise ValueError(f"lora_rank {plan.lora_rank} is not covered for a mixture of experts")
    in_attention = plan.kernels in ("transformers", "liger") and a.family != "bert"
    if plan.dropout and not (in_attention or a.family == "gpt2" or plan.framework == "megatron"):
        raise ValueError(
            "dropout is covered with kernels 'transformers' and 'liger', or framework 'megatron'; "
            f"got kernels {plan.kernels!r}"
        )
    if plan.loss_head == "pieces" and plan.wrapping == "split" and in_attention:
        raise ValueError(
            "loss_head 'pieces' calls the head once a piece, which is not covered with wrapping "
            f"'split' and kernels {plan.kernels!r}; use wrapping 'layers'"
        )
    if plan.wrapping == "split" and (a.tie_embeddings or a.family == "gpt2"):
        raise ValueError("wrapping 'split' needs an embedding and a head that are not tied")


def structure_of(
    architecture: Architecture,
    plan: Plan,
    *,
    alone: bool,
    single: bool,
    chunks: int,
    stage: Stage | None = None,
) -> Structure:
    """Pick what of an architecture and a plan decides the order of events.

    Raises
    ------
    ValueError
        For a combination of model and plan that is not covered.
    """
    a = architecture
    check_kernels(a, plan)
    if plan.kernels == "litgpt" or plan.pp > 1:  # litgpt ties nothing, a pipeline cannot
        a = replace(a, tie_embeddings=False)
    stage = stage or stages(a, plan)[0]
    delayed = plan.no_sync or (plan.sharding == "zero1" and plan.fsdp)
    layer, head = dict(a.layer_parameters), dict(a.root_parameters)
    adapted = _adapted(a, plan)
    for name in adapted:
        table = head if name == "head" else layer
        rows, cols = ("V", "h") if name == "head" else layer[name + ".weight"]
        if a.family == "gpt2" and name != "head":  # its weights are transposed
            rows, cols = cols, rows
        table[name + ".lora_A.weight"] = ("x", cols)
        table[name + ".lora_B.weight"] = (rows, "x")
    if not stage.first:
        head.pop("embed")
    if not stage.last:
        head = {name: p for name, p in head.items() if name in ("embed", "position")}
    return Structure(
        family=a.family if a.family in ("gpt2", "qwen3", "gpt", "neox", "bert") else "llama",
        num_layers=stage.chunk_layers,
        tied=a.tie_embeddings,
        grouped=a.num_kv_heads != a.num_heads,
        one_kv=a.num_kv_heads == 1,
        single=single,
        layer=tuple(layer.items()),
        root=tuple(head.items()),
        alone=alone,
        sharding=plan.sharding,
        precision=plan.precision,
        optimizer=plan.optimizer,
        attention=plan.attention,
        loss_head=plan.loss_head,
        chunks=chunks,
        checkpoint=plan.checkpointing in ("full", "every_2nd")
        or (plan.checkpointing == "selective" and plan.kernels in SELECTED),
        micros=1 if plan.pp > 1 else min(plan.accumulation, 3 if delayed else 2),
        no_sync=delayed and plan.sharding != "zero1",
        # In a pipeline gradients of earlier micro batches are there from the second on.
        keep=plan.keep_gradients or plan.framework != "torch" or plan.pp > 1,
        split=plan.wrapping == "split",
        reduce_unit=4 if plan.reduce_dtype == "float32" else 2,
        use_cache=plan.use_cache,
        dropout=plan.dropout or (a.dropout and plan.kernels == "transformers"),
        framework=plan.framework,
        kernels=plan.kernels,
        gated=a.gated,
        selective=plan.checkpointing == "selective",
        every_2nd=plan.checkpointing == "every_2nd",
        parallel=plan.tp > 1,
        sp=plan.tp > 1 and plan.sequence_parallel,
        ring=plan.cp > 1,
        first=stage.first,
        last=stage.last,
        held_layers=stage.layers,
        waiting=stage.waiting,
        adapted=adapted,
        quantization=plan.quantization,
        offload=plan.offload,
        experts=a.experts,
        qk_norm=a.family in ("qwen3", "qwen3_moe"),
        learned_positions="position" in a.root_parameters,
        padded_heads=a.head_dim % 8 != 0,
        unaligned_heads=a.head_dim % 4 != 0,
    )


#: Products with an adapter, by the plan's `lora_targets`.
TARGETS = {
    "qv": ("q", "v"),
    "qkv": ("q", "k", "v"),
    "attention": ("q", "k", "v", "o"),
    "all": ("q", "k", "v", "o", "gate", "up", "down"),
    "all_head": ("q", "k", "v", "o", "gate", "up", "down", "head"),
}


def _adapted(a: Architecture, plan: Plan) -> tuple[str, ...]:
    """Products with an adapter, of those the family has."""
    if not plan.lora_rank:
        return ()
    targets = TARGETS[plan.lora_targets]
    if a.family == "gpt2":  # queries, keys and values are one product
        targets = ("qkv", *(t for t in targets if t not in ("q", "k", "v", "gate")))
    return tuple(t for t in targets if a.gated or t != "gate")


def chunk_tokens(architecture: Architecture, plan: Plan, tokens: Any) -> Any:
    """Tokens in one chunk of the loss head, for `tokens` in all.

    Fused: so that a chunk's logits are no larger than the hidden states, a power of two
    (`fused_linear_cross_entropy_forward` in Liger-Kernel).
    """
    if plan.loss_head == "fused":
        pieces = -(-architecture.vocab_size // architecture.hidden_dim)
        return np.minimum(2.0 ** np.ceil(np.log2(np.ceil(tokens / pieces))), tokens)
    if plan.loss_head == "chunked":
        return np.minimum(float(plan.loss_chunk), tokens)
    return tokens


def situation(
    architecture: Architecture, plan: Plan, *, b: Any, s: Any, n: Any
) -> tuple[Any, Any, Any]:
    """Say what of the numbers changes the order of events.

    Whether a rank is alone, whether there is a single sequence, and how many chunks of the loss are
    run: one, two, or three for more.
    """
    chunks = np.minimum(np.ceil(b * s / chunk_tokens(architecture, plan, b * s)), 3)
    return n == 1, b == 1, chunks


def divided(architecture: Architecture, plan: Plan, *, b: Any, s: Any) -> dict[str, Any]:
    """Dimensions that the parallel axes divide.

    Heads, FFN and vocabulary by tp (the vocabulary padded); "r" tokens of the residual stream by
    tp too with sequence parallelism; experts by ep, with "t" tokens in all for those on one GPU:
    each of the b · s tokens goes to its top experts, wherever they are, and as many come from
    others.
    """
    dims, t = architecture.dims, plan.tp
    out: dict[str, Any] = {
        "r": s / t if plan.sequence_parallel else s,
        "t": b * s * architecture.experts_per_token * (plan.expert_load / 100),
        "e": dims["e"] // plan.ep,
    }
    if t > 1:
        out |= {name: dims[name] // t for name in "qkwfag"}
        out["V"] = -(-dims["V"] // t)
        if plan.sequence_parallel:
            out["t"] = out["t"] / t
    return out


def block_bytes(
    sizes: tuple[SizeKey, ...], architecture: Architecture, plan: Plan, *, b: Any, s: Any, n: Any
) -> Floats:
    """Bytes of each symbolic size, shape (sizes, configurations), rounded as the allocator does.

    `s` is the length on one GPU, `n` the GPUs that share the states (dp · cp).
    """
    d = architecture.head_dim
    padded = -(-d // 8) * 8
    columns = 32 if padded <= 128 else 64
    chunk = chunk_tokens(architecture, plan, b * s)
    count = np.ceil(b * s / chunk)
    last = b * s - (count - 1) * chunk
    dims: dict[str, Any] = {
        **architecture.dims,
        "b": b,
        "s": s,
        "i": s + 1,
        "j": s - 1,
        "R": -(-s // 128) * 128,
        "E": -(-s // 32) * 32,
        **{piece: (s + 7 - i) // 8 for i, piece in enumerate(PIECES)},
        "c": chunk,
        "l": chunk,
        "z": last,
        "u": np.maximum(b * s - 2 * chunk - last, 0),
        "m": np.maximum(count - 3, 0),
        "C": -(-padded // columns) * columns + 1,
        "x": plan.lora_rank,
        **divided(architecture, plan, b=b, s=s),
    }
    dims |= {"Q": dims["a"] * padded, "K": dims["g"] * padded}
    out = np.empty((len(sizes), *np.shape(b)))

    def product(letters: str) -> Any:
        total: Any = 1.0
        for letter in letters:
            total = total * dims[letter]
        return total

    for i, (how, what, unit) in enumerate(sizes):
        if isinstance(what, str):
            elements = product(what)
            if how == "8bit" and elements < MIN_8BIT:  # kept in fp32, which needs no scales
                elements = 4 * elements if unit == 1 else 0
        else:
            shards = 0.0
            for rows, cols in what:
                ranks = np.maximum(n / plan.ep, 1) if rows == "e" else n
                shard = np.ceil(dims[rows] / ranks) * product(cols)
                shards = shards + (shard * ranks if how.startswith("gather") else shard)
            elements = shards
        out[i] = np.ceil(elements * unit / ROUND) * ROUND
    return out
