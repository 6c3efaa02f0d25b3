"""The numbers of a configuration: its dimensions, and the bytes of every symbolic size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmem.transformer.architecture import Architecture
from trainmem.transformer.engine.dims import (
    CHUNK,
    D_ACC,
    K_8,
    LAST_CHUNK,
    NUM_OTHER_CHUNKS,
    OTHER_CHUNKS,
    PIECES,
    Q_8,
    S_32,
    S_128,
    S_MINUS_1,
    S_PLUS_1,
    A,
    B,
    Dim,
    E,
    F,
    G,
    K,
    Q,
    R,
    S,
    Shape,
    T,
    V,
    W,
    X,
)
from trainmem.transformer.engine.tape import Form, Size
from trainmem.transformer.plan import Plan

#: The CUDA caching allocator rounds every block up to this many bytes.
ROUND = 512

#: Elements from which bitsandbytes keeps a parameter's states in 8 bits (`min_8bit_size`).
MIN_8BIT = 4096

Floats = NDArray[np.float64]


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


def order_conditions(
    architecture: Architecture, plan: Plan, *, b: Any, s: Any, n: Any
) -> tuple[Any, Any, Any]:
    """Say what of the numbers changes the order of events.

    Whether a rank is alone, whether there is a single sequence, and how many chunks of the loss are
    run: one, two, or three for more.
    """
    chunks = np.minimum(np.ceil(b * s / chunk_tokens(architecture, plan, b * s)), 3)
    return n == 1, b == 1, chunks


def dimensions(architecture: Architecture, plan: Plan, *, b: Any, s: Any) -> dict[Dim, Any]:
    """Return every dimension of a configuration, `b` sequences of `s` tokens on one GPU.

    Heads, FFN and vocabulary are divided by tp (the vocabulary padded), and the residual stream's
    tokens too with sequence parallelism; experts by ep, with T tokens in all for those on one GPU:
    each of the b · s tokens goes to its top experts, wherever they are, and as many come from
    others.
    """
    a, t = architecture, plan.tp
    chunk = chunk_tokens(a, plan, b * s)
    count = np.ceil(b * s / chunk)
    last = b * s - (count - 1) * chunk
    padded = -(-a.head_dim // 8) * 8
    columns = 32 if padded <= 128 else 64
    own = a.dims
    heads, kv_heads = own[A] // t, own[G] // t
    divided = t if plan.sequence_parallel else 1
    return {
        **own,
        **{dim: own[dim] // t for dim in (Q, K, W, F)},
        A: heads,
        G: kv_heads,
        V: -(-own[V] // t),
        E: own[E] // plan.ep,
        T: b * s * a.experts_per_token * (plan.expert_load / 100) / divided,
        R: s / divided,
        X: plan.lora_rank,
        B: b,
        S: s,
        S_PLUS_1: s + 1,
        S_MINUS_1: s - 1,
        S_128: -(-s // 128) * 128,
        S_32: -(-s // 32) * 32,
        Q_8: heads * padded,
        K_8: kv_heads * padded,
        D_ACC: -(-padded // columns) * columns + 1,
        CHUNK: chunk,
        LAST_CHUNK: last,
        OTHER_CHUNKS: np.maximum(b * s - 2 * chunk - last, 0),
        NUM_OTHER_CHUNKS: np.maximum(count - 3, 0),
        **{piece: (s + 7 - i) // 8 for i, piece in enumerate(PIECES)},
    }


def block_bytes(
    sizes: tuple[Size, ...], architecture: Architecture, plan: Plan, *, b: Any, s: Any, n: Any
) -> Floats:
    """Bytes of each symbolic size, shape (sizes, configurations), rounded as the allocator does.

    `s` is the length on one GPU, `n` the GPUs that share the states (dp · cp).
    """
    dims = dimensions(architecture, plan, b=b, s=s)
    out = np.empty((len(sizes), *np.shape(b)))

    def product(shape: Shape) -> Any:
        total: Any = 1.0
        for dim in shape:
            total = total * dims[dim]
        return total

    for i, (form, shapes, unit) in enumerate(sizes):
        if form is Form.WHOLE:
            elements = product(shapes[0])
        elif form is Form.EIGHT_BIT:
            elements = product(shapes[0])
            if elements < MIN_8BIT:  # kept in fp32, which needs no scales
                elements = 4 * elements if unit == 1 else 0
        else:
            elements = 0.0
            for first, *others in shapes:
                ranks = np.maximum(n / plan.ep, 1) if first is E else n
                shard = np.ceil(dims[first] / ranks) * product(tuple(others))
                elements = elements + (shard * ranks if form is Form.GATHERED else shard)
        out[i] = np.ceil(elements * unit / ROUND) * ROUND
    return out
