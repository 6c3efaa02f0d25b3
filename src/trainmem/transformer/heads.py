"""Loss heads: how logits become a loss, and what the backward pass finds of them.

Three ways. Most are rows of the head's own graph (`losses`). `chunked`: a checkpoint per chunk of
tokens; the first two chunks and the last are run, those between add only what they leave behind.
`fused`: Liger's function, which makes all gradients in forward, in one chunk-sized buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer import losses
from trainmem.transformer.engine.dims import (
    BS,
    BSH,
    CHUNK,
    LAST_CHUNK,
    NUM_OTHER_CHUNKS,
    OTHER_CHUNKS,
    PIECES,
    SCALAR,
    Dim,
    H,
    V,
)
from trainmem.transformer.engine.graph import Graph, Value
from trainmem.transformer.engine.tape import GRADIENTS, SAVED, TEMPORARY, Storage, whole

if TYPE_CHECKING:
    from trainmem.transformer.micro import Micro


def contributions(micro: Micro, name: str) -> int:
    """How many gradients of a parameter the engine sums before it is ready.

    More than one of the head's, which is used once a piece, and as the embedding if tied.
    """
    s = micro.writer.s
    if not name.startswith("head."):
        return 1
    uses = 1
    if not micro.writer.precision.autocast:  # which sums those of its cast
        if s.loss_head == "chunked":
            uses = len(chunks_run(micro))
        elif s.loss_in_pieces:
            uses = len(PIECES)
    return uses + (s.tied and name == "head.weight")


# ---- chunked ----
def chunks_forward(micro: Micro) -> None:
    """Run the head on chunk after chunk, keeping the hidden states and a loss each."""
    writer, head = micro.writer, micro.head
    head.run(losses.labels(writer.s, "LABELS"), returns=("LABELS",))
    micro.labels = head.env["LABELS"]
    values: list[Value] = []
    writer.emit(whole((NUM_OTHER_CHUNKS,), 512), 1, TEMPORARY)
    for tokens in chunks_run(micro):
        graph = micro.graph(writer.named, save=False)
        graph.casts = head.casts
        run_chunk(micro, graph, tokens)
        for name in ("Y", "LABELS"):
            writer.tape.hold(head.env[name].storage, SAVED)
        values.append(graph.take("LOSS"))
    for value in values:
        head.release(value)
    writer.emit(whole((NUM_OTHER_CHUNKS,), 512), -1, TEMPORARY)
    head.bind("LOSS", head.make(SCALAR, 4))
    head.forget("LABELS")


def chunks_run(micro: Micro) -> tuple[Dim, ...]:
    """Dimensions of the chunks that are run: the first, the second, the last.

    Neither of the first two can stand for the other: in backward the second runs while the hidden
    states are alive, the first lets them go.
    """
    return ((CHUNK,), (CHUNK, LAST_CHUNK), (CHUNK, CHUNK, LAST_CHUNK))[micro.writer.s.chunks - 1]


def run_chunk(micro: Micro, graph: Graph, tokens: Dim) -> Value:
    """Run one chunk's table; returns its slice of the hidden states."""
    hidden = micro.hidden
    value = Value(hidden.storage, (tokens, H), hidden.unit)
    graph.env["H"], graph.env["L"] = value, micro.labels
    graph.run(losses.chunk(tokens), returns=("LOSS",))
    return value


def chunks_backward(micro: Micro) -> None:
    """Recompute and run backward the last chunk, then the first; join their gradients."""
    writer, tape, head = micro.writer, micro.writer.tape, micro.head
    hidden = micro.hidden
    parts: list[Storage] = []
    summed: Storage | None = None
    for tokens in reversed(chunks_run(micro)):
        graph = micro.graph(writer.named, recompute=True)
        with tape.recording() as events:
            value = run_chunk(micro, graph, tokens)
            cast = graph.casts.get("head.weight")
            graph.clear_casts()
            loss = graph.take("LOSS")
            tape.drop(loss.storage)
        graph.keep_in_frame(hidden.storage, micro.labels.storage)
        tape.events += graph.stopped_early(events)
        # Forward cast the weight once, so its gradients are summed before one cast back.
        node = next((node for node in graph.nodes if cast in node.outs), None)
        if cast and node:
            graph.nodes.remove(node)
            cast.grad = summed
        loss.grad = micro.unwritten(SCALAR, 4)
        tape.hold(loss.grad)
        graph.backward()
        if cast and node:
            summed = cast.grad
            if len(parts) + 1 == len(chunks_run(micro)):
                graph.step(node)
        parts.append(value.gradient)
        if tokens is LAST_CHUNK:
            writer.emit(whole((OTHER_CHUNKS, H), hidden.unit), 1, TEMPORARY)
    hidden.grad = head.new(BSH, hidden.unit)
    for part in parts:
        tape.drop(part)
    if len(parts) > 1:
        writer.emit(whole((OTHER_CHUNKS, H), hidden.unit), -1, TEMPORARY)


# ---- fused ----
def fused_forward(micro: Micro) -> None:
    """Liger's fused linear cross entropy: gradients of hidden states and weight, chunk by chunk.

    Under autocast (or where types differ) nothing is done in place: the weight is cast, once for
    all and, transposed, once a chunk; two chunks show the difference.
    """
    writer, tape, head = micro.writer, micro.writer.tape, micro.head
    unit = writer.weight_unit
    head.run(losses.labels(writer.s, "LABELS"), returns=("LABELS",))
    hidden = tape.alloc(BSH, unit, SAVED)
    trained = not writer.s.frozen
    weight = tape.alloc((V, H), unit, GRADIENTS) if trained else None
    per_token = tape.alloc(BS, 4, TEMPORARY)
    if not writer.precision.autocast:
        tape.drop(head.new((CHUNK, V), unit))
    else:
        for _ in range(min(writer.s.chunks, 2)):
            transposed, chunk = head.new((V, H), 2), head.new((CHUNK, H), 2)
            logits = head.new((CHUNK, V), 2)
            tape.drop(chunk)
            tape.drop(transposed)
            head.release(head.low(head.parameter("head.weight")))
            tape.drop(head.new((CHUNK, H), 2))
            chunk = head.new((CHUNK, H), 2)
            tape.drop(logits)
            tape.drop(chunk)
    head.bind("LOSS", head.make(SCALAR, 4))
    tape.drop(per_token)
    head.forget("LABELS")
    micro.made = (hidden, weight)


def fused_backward(micro: Micro) -> None:
    """Hand out the gradients made in forward."""
    micro.hidden.grad, weight = micro.made
    if weight is not None:
        micro.collect("head.weight", weight)
