"""Named dimensions: every tensor's size is a product of these, times bytes.

So a step that was run once holds for every configuration of the same structure: a configuration is
one number for each dimension (`trainmem.transformer.sizes.dimensions` gives them).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Dim:
    """A dimension: its symbol, as papers and formulas have it, and what it counts."""

    symbol: str
    meaning: str

    def __repr__(self) -> str:
        """Return the symbol."""
        return self.symbol


#: A tensor's dimensions; the empty one is a scalar.
Shape = tuple[Dim, ...]

B = Dim("b", "micro batch, sequences")
S = Dim("s", "sequence length on one GPU, tokens")
H = Dim("h", "hidden size")
A = Dim("a", "attention heads")
G = Dim("g", "key/value heads")
D = Dim("d", "head size")
Q = Dim("q", "query width, heads × head size")
K = Dim("k", "key (and value) width, key/value heads × head size")
W = Dim("w", "fused query, key and value width, q + 2k")
F = Dim("f", "FFN size")
V = Dim("V", "vocabulary size")
P = Dim("p", "learned positions")
N = Dim("n", "experts")
E = Dim("e", "experts on one GPU")
T = Dim("t", "tokens for the experts on one GPU, each counted once an expert")
Y = Dim("y", "token types, and classes, of an encoder: two each")
X = Dim("x", "rank of the adapters")
R = Dim("r", "tokens of the residual stream on one GPU: s, divided by tp if sequence parallel")

S_PLUS_1 = Dim("s+1", "labels padded by one token")
S_MINUS_1 = Dim("s-1", "tokens that have a next one")
S_128 = Dim("⌈s⌉128", "sequence length up to a multiple of 128: flash attention's blocks")
S_32 = Dim("⌈s⌉32", "sequence length up to a multiple of 32: memory-efficient attention's blocks")
Q_8 = Dim("⌈q⌉8", "query width with head sizes up to a multiple of 8")
K_8 = Dim("⌈k⌉8", "key width with head sizes up to a multiple of 8")
D_ACC = Dim("⌈d⌉acc", "columns of flash attention's fp32 accumulator of the query gradient")

CHUNK = Dim("c", "tokens of a whole chunk of the loss")
LAST_CHUNK = Dim("z", "tokens of the last chunk of the loss")
OTHER_CHUNKS = Dim("u", "tokens of the chunks between the second and the last")
NUM_OTHER_CHUNKS = Dim("m", "chunks beyond the first three")

#: torchtune's eight pieces of a sequence (`num_output_chunks`), first to last.
PIECES = tuple(Dim(f"s{i}", f"tokens of piece {i} of a sequence") for i in range(8))

#: All of them.
DIMS = (
    *(B, S, H, A, G, D, Q, K, W, F, V, P, N, E, T, Y, X, R),
    *(S_PLUS_1, S_MINUS_1, S_128, S_32, Q_8, K_8, D_ACC),
    *(CHUNK, LAST_CHUNK, OTHER_CHUNKS, NUM_OTHER_CHUNKS, *PIECES),
)

SCALAR: Shape = ()
BS: Shape = (B, S)
BSH: Shape = (B, S, H)
BSQ: Shape = (B, S, Q)
BSK: Shape = (B, S, K)
BSF: Shape = (B, S, F)
BSV: Shape = (B, S, V)
#: One number a sequence, head and token; and a sequence, head and pair of tokens.
PER_HEAD: Shape = (B, A, S)
SCORES: Shape = (B, A, S, S)
