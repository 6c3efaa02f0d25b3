"""How logits become a loss, as tables of operations.

`trainmem.transformer.heads` runs the two that are not tables alone: chunks and the fused head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine import fused_ops as fused
from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import (
    BS,
    PIECES,
    S_MINUS_1,
    S_PLUS_1,
    SCALAR,
    B,
    Dim,
    H,
    V,
)
from trainmem.transformer.engine.graph import Row, Table, end

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure

R = Row


def labels(s: Structure, name: str) -> Table:
    """Labels shifted by one token: padded, then copied, unless one sequence needs no copy."""
    shifted = R(name, ops.same, "pad") if s.single else R(name, ops.fixed, shape=BS, unit=8)
    return (R("pad", ops.fixed, shape=(B, S_PLUS_1), unit=8), shifted)


def cross_entropy(s: Structure) -> Table:
    """Cross entropy as transformers computes it: an fp32 copy of the logits, log-softmax."""
    return (
        R("lf", ops.float32, "LOGITS"),
        *labels(s, "labels"),
        R("lp", ops.log_softmax, "lf"),
        R("LOSS", ops.nll_loss, "lp labels"),
        end("lf pad"),
    )


def held_logits(s: Structure) -> Table:
    """Logits that the model returns, in fp32 where it raised them (transformers before 4.45)."""
    return (R("OUTPUT", ops.float32 if s.code.upcasts_logits else ops.same, "LOGITS"),)


def held_cross_entropy(s: Structure) -> Table:
    """Cross entropy of logits and labels without the last token of each sequence.

    Copies, unless one sequence makes them views.
    """
    shifted = (SCALAR, 0) if s.single else ((B, S_MINUS_1), 8)
    return (
        R("sh", ops.split if s.single else fused.routed, "OUTPUT", shape=(B, S_MINUS_1, V)),
        R("labels", ops.fixed, shape=shifted[0], unit=shifted[1]),
        R("lp", ops.log_softmax, "sh"),
        R("lf", ops.float32 if s.precision == "amp" else ops.same, "lp"),
        R("LOSS", ops.nll_loss, "lf labels"),
        end("sh lp labels"),
    )


#: Names of the logits in pieces.
PIECE_LOGITS = tuple(f"LOGITS{i}" for i in range(len(PIECES)))


def piece_logits(s: Structure) -> Table:
    """Logits of a sequence in pieces (`TransformerDecoder.chunked_output` in torchtune).

    A piece of several sequences is copied for its product; autocast has copied it already.
    """
    copied = not (s.single or s.precision == "amp")
    rows = [R(f"h{i}", ops.split, "Y", shape=(B, piece, H)) for i, piece in enumerate(PIECES)]
    for i, piece in enumerate(PIECES):
        if copied:
            rows.append(R(f"c{i}", ops.copy, f"h{i}"))
        x = f"c{i}" if copied else f"h{i}"
        rows.append(R(PIECE_LOGITS[i], ops.linear, x, "head", (B, piece, V)))
    return (*rows, end(" ".join(f"h{i}" for i in range(len(PIECES)))))


def piece_losses(s: Structure) -> Table:
    """Cross entropy of fp32 copies of the pieces, summed (`CEWithChunkedOutputLoss`)."""
    rows = [
        R("pad", ops.fixed, shape=(B,), unit=8),
        R("labels", ops.fixed, "pad", shape=BS, unit=8),
        R("kept", ops.fixed, shape=BS, unit=1),
        R("count", ops.fixed, "kept", unit=8),
    ]
    for i, piece in enumerate(PIECES):
        own = R(f"l{i}", ops.fixed, shape=(B, piece), unit=8)
        rows.append(R(f"l{i}", ops.same, "labels") if s.single else own)
    rows.append(end("labels"))
    for i in range(len(PIECES)):
        rows += [
            R(f"f{i}", ops.float32, f"LOGITS{i}"),
            R(f"p{i}", ops.log_softmax, f"f{i}"),
            R(f"e{i}", ops.nll_loss, f"p{i} l{i}"),
            end(f"f{i}"),
            R(f"s{i}", ops.add, f"s{i - 1} e{i}") if i else R("s0", ops.passing, "e0"),
        ]
    return (*rows, R("LOSS", ops.scale, f"s{len(PIECES) - 1}"), end("count"))


def chunk(tokens: Dim) -> Table:
    """Head and cross entropy of one chunk of so many tokens."""
    return (
        R("lo", ops.linear, "H", "head", (tokens, V)),
        R("lf", ops.float32, "lo"),
        R("lp", ops.log_softmax, "lf"),
        R("LOSS", ops.nll_loss, "lp L"),
        end("lf"),
    )


#: Losses of one kernel on whole logits, by the plan's name.
ONE_KERNEL: dict[str, Table] = {
    "compiled": (R("LOSS", fused.loss_compiled, "LOGITS"),),
    "pieces": (R("LOSS", fused.loss_pieces, "LOGITS"),),
    "parallel": (R("LOSS", fused.loss_by_vocabulary, "LOGITS"),),
    "in_place": (R("LOSS", fused.loss_in_place, "LOGITS"),),
}
