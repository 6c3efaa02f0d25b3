"""The numbers of a configuration: its dimensions, and the bytes of every symbolic size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
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


@lru_cache(maxsize=256)
def fixed_dimensions(
    architecture: Architecture, tp: int, ep: int, lora_rank: int
) -> Mapping[Dim, int]:
    """Return the dimensions that do not depend on tokens.

    Heads, FFN and vocabulary are divided by tp (the vocabulary padded), experts by ep.
    """
    own = architecture.dims
    padded = -(-architecture.head_dim // 8) * 8
    columns = 32 if padded <= 128 else 64
    heads, kv_heads = own[A] // tp, own[G] // tp
    return {
        **own,
        **{dim: own[dim] // tp for dim in (Q, K, W, F)},
        A: heads,
        G: kv_heads,
        V: -(-own[V] // tp),
        E: own[E] // ep,
        X: lora_rank,
        Q_8: heads * padded,
        K_8: kv_heads * padded,
        D_ACC: -(-padded // columns) * columns + 1,
    }


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro batch: `b` sequences of `s` on one GPU, numbers or arrays."""

    architecture: Architecture
    plan: Plan
    b: Any
    s: Any

    @cached_property
    def all(self) -> Any:
        """Tokens on one GPU."""
        return self.b * self.s

    @cached_property
    def divided(self) -> int:
        """What the tokens of the residual stream are divided by."""
        return self.plan.tp if self.plan.sequence_parallel else 1

    @cached_property
    def for_experts(self) -> Any:
        """Tokens for the experts on one GPU.

        Each goes to its top experts, wherever they are, and as many come from others.
        """
        load = self.plan.expert_load / 100
        return self.all * self.architecture.experts_per_token * load / self.divided

    @cached_property
    def chunk(self) -> Any:
        """Tokens of a whole chunk of the loss."""
        return chunk_tokens(self.architecture, self.plan, self.all)

    @cached_property
    def chunks(self) -> Any:
        """Chunks of the loss."""
        return np.ceil(self.all / self.chunk)

    @cached_property
    def last_chunk(self) -> Any:
        """Tokens of the last chunk."""
        return self.all - (self.chunks - 1) * self.chunk


#: Dimensions that follow from the tokens of a micro batch; the others from model and layout.
OF_TOKENS: Mapping[Dim, Callable[[Tokens], Any]] = {
    B: lambda t: t.b,
    S: lambda t: t.s,
    R: lambda t: t.s / t.divided,
    T: lambda t: t.for_experts,
    S_PLUS_1: lambda t: t.s + 1,
    S_MINUS_1: lambda t: t.s - 1,
    S_128: lambda t: -(-t.s // 128) * 128,
    S_32: lambda t: -(-t.s // 32) * 32,
    CHUNK: lambda t: t.chunk,
    LAST_CHUNK: lambda t: t.last_chunk,
    OTHER_CHUNKS: lambda t: np.maximum(t.all - 2 * t.chunk - t.last_chunk, 0),
    NUM_OTHER_CHUNKS: lambda t: np.maximum(t.chunks - 3, 0),
    **{piece: lambda t, i=i: (t.s + 7 - i) // 8 for i, piece in enumerate(PIECES)},  # type: ignore[misc]
}


def orders(architecture: Architecture, plan: Plan, *, b: Any, s: Any, n: Any) -> Any:
    """Say what of the numbers changes the order of events, as a whole number each.

    Whether a rank is alone (1), whether there is a single sequence (2), and how many chunks of the
    loss are run: one, two, or three for more (times 4).
    """
    chunks = np.minimum(Tokens(architecture, plan, b, s).chunks, 3)
    return (4 * chunks + 2 * (b == 1) + (n == 1)).astype(np.int64)


class SizeTable:
    """Symbolic sizes as index arrays: the bytes of all of them in a few operations.

    A whole block is fixed dimensions times one of few products of tokens. A shard is a sum over
    parameters, which recur in many sizes.

    Attributes
    ----------
    whole, shared
        Indices of the sizes that are whole, and of those that the ranks share.
    """

    def __init__(self, sizes: tuple[Size, ...]) -> None:
        form = np.array([size.form for size in sizes], dtype=np.int64)
        unit = np.array([size.unit for size in sizes], dtype=np.float64)
        sharing = np.isin(form, (Form.SHARD, Form.GATHERED, Form.OWN))
        self.whole, self.shared = np.flatnonzero(~sharing), np.flatnonzero(sharing)
        self._whole_unit, self._shared_unit = unit[self.whole], unit[self.shared, None]
        self._eight_bit = np.flatnonzero(form[self.whole] == Form.EIGHT_BIT)
        shapes = [sizes[i].shapes[0] for i in self.whole]
        tokens = [tuple(dim for dim in shape if dim in OF_TOKENS) for shape in shapes]
        self._tokens = list(dict.fromkeys(tokens))
        self._token_dims = {dim for shape in tokens for dim in shape}
        self._of_tokens = np.array([self._tokens.index(each) for each in tokens], dtype=np.int64)
        divided = [i for i in self.shared if sizes[i].form is not Form.OWN]
        parameters = list(dict.fromkeys(p for i in divided for p in sizes[i].shapes))
        #: Rows of the shared sizes that are the framework's own, and of which dimension.
        self._own = [
            (row, sizes[i].shapes[0][0])
            for row, i in enumerate(self.shared)
            if sizes[i].form is Form.OWN
        ]
        self._expert = np.array([[p[0] is E] for p in parameters], dtype=bool)
        #: How often a size has a parameter, as a shard and gathered: (shared, 2 · parameters).
        self._has = np.zeros((len(self.shared), 2 * len(parameters)))
        for row, i in enumerate(self.shared):
            gathered = len(parameters) if sizes[i].form is Form.GATHERED else 0
            for p in sizes[i].shapes if sizes[i].form is not Form.OWN else ():
                self._has[row, gathered + parameters.index(p)] += 1
        fixed = [tuple(dim for dim in shape if dim not in OF_TOKENS) for shape in shapes]
        self._dims = list(dict.fromkeys(dim for shape in (*fixed, *parameters) for dim in shape))
        self._fixed = self._indices(fixed)
        self._first = self._indices([p[:1] for p in parameters])
        self._rest = self._indices([p[1:] for p in parameters])
        self._last: tuple[Any, tuple[Floats, Floats, Floats]] | None = None

    def _indices(self, shapes: list[Shape]) -> NDArray[np.int64]:
        """Return shapes as rows of indices into the fixed dimensions, filled up with a one's."""
        longest = max(map(len, shapes), default=0)
        one = len(self._dims)
        rows = [[*map(self._dims.index, s), *[one] * (longest - len(s))] for s in shapes]
        return np.array(rows, dtype=np.int64).reshape(len(shapes), longest)

    def bytes(
        self,
        architecture: Architecture,
        plan: Plan,
        *,
        b: Any,
        s: Any,
        n: Any,
        own: Mapping[Dim, Any] | None = None,
    ) -> tuple[Floats, Floats]:
        """Return the bytes of the whole and of the shared sizes, rounded as the allocator does.

        Parameters
        ----------
        architecture, plan
            The model and how it is run.
        b, s, n
            Micro batch, length on one GPU, GPUs that share the states (dp · cp); numbers, or
            arrays of shape (configurations,).
        own
            The framework's own numbers, each like `n`.

        Returns
        -------
        tuple of ndarray
            Shapes (whole, 1 or configurations) by the tokens, (shared, 1 or configurations) by
            the GPUs.
        """
        whole_each, first, rest = self._fixed_bytes(architecture, plan.tp, plan.ep, plan.lora_rank)
        tokens = Tokens(architecture, plan, b, s)
        counted = {dim: OF_TOKENS[dim](tokens) for dim in self._token_dims}
        each = np.empty((len(self._tokens), max(np.size(b), np.size(s))))
        for i, shape in enumerate(self._tokens):
            each[i] = math.prod(counted[dim] for dim in shape)
        whole = each[self._of_tokens] * whole_each
        ranks = np.reshape(n, (1, -1))
        if plan.ep > 1:
            ranks = np.where(self._expert, np.maximum(ranks / plan.ep, 1), ranks)
        shard = np.ceil(first / ranks) * rest
        shared = self._has @ np.concatenate([shard, shard * ranks])
        for row, dim in self._own:
            shared[row] = own[dim] if own else 0
        shared *= self._shared_unit
        return np.ceil(whole / ROUND) * ROUND, np.ceil(shared / ROUND) * ROUND

    def _fixed_bytes(
        self, architecture: Architecture, tp: int, ep: int, lora_rank: int
    ) -> tuple[Floats, Floats, Floats]:
        """Return what does not depend on tokens and ranks, for the last model and layout asked.

        Bytes of the whole sizes without their tokens; first dimensions of the parameters, and the
        elements of the others.
        """
        key = architecture, tp, ep, lora_rank
        if self._last is None or self._last[0] != key:
            dims = fixed_dimensions(*key)
            fixed = np.array([*(dims[dim] for dim in self._dims), 1], dtype=np.float64)
            elements = fixed[self._fixed].prod(axis=1)
            unit = self._whole_unit.copy()
            # The states of small parameters are in fp32, which needs no scales.
            small = self._eight_bit[elements[self._eight_bit] < MIN_8BIT]
            unit[small] = np.where(unit[small] == 1, 4, 0)
            first, rest = (fixed[each].prod(axis=1) for each in (self._first, self._rest))
            self._last = key, ((elements * unit)[:, None], first[:, None], rest[:, None])
        return self._last[1]
