"""Loss heads: how logits become a loss, and what the backward pass finds of them.

Three ways. `transformers`: rows of the head's own graph. `chunked`: a checkpoint per chunk of
tokens; the first two chunks and the last are run, those between add only what they leave behind.
`fused`: Liger's function, which makes all gradients in forward, in one chunk-sized buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer import blocks
from trainmem.transformer.replay import GRADIENTS, SAVED, TEMPORARY, Graph, Storage, Value

if TYPE_CHECKING:
    from trainmem.transformer.schedule import Micro


def contributions(micro: Micro, name: str) -> int:
    """How many gradients of a parameter the engine sums before it is ready.

    More than one of the head's, which is used once a piece, and as the embedding if tied.
    """
    s = micro.ledger.s
    if not name.startswith("head."):
        return 1
    uses = 1
    if not micro.ledger.precision.autocast:  # which sums those of its cast
        if s.loss_head == "chunked":
            uses = len(chunk_letters(micro))
        elif s.pieces:
            uses = len(blocks.PIECES)
    return uses + (s.tied and name == "head.weight")


# ---- chunked ----
def chunks_forward(micro: Micro) -> None:
    """Run the head on chunk after chunk, keeping the hidden states and a loss each."""
    ledger, head = micro.ledger, micro.head
    head.run(blocks.labels(ledger.s, "LABELS"))
    micro.labels = head.env["LABELS"]
    losses: list[Value] = []
    ledger.emit(("", "m", 512), 1, TEMPORARY)
    for letter in chunk_letters(micro):
        graph = micro.graph(ledger.named, save=False)
        graph.casts = head.casts
        run_chunk(micro, graph, letter)
        for name in ("Y", "LABELS"):
            ledger.tape.hold(head.env[name].storage, SAVED)
        losses.append(graph.take("LOSS"))
    for value in losses:
        head.release(value)
    ledger.emit(("", "m", 512), -1, TEMPORARY)
    head.bind("LOSS", head.make("", 4))
    head.forget("LABELS")


def chunk_letters(micro: Micro) -> str:
    """Dimensions of the chunks that are run: the first, the second, the last.

    Neither of the first two can stand for the other: in backward the second runs while the hidden
    states are alive, the first lets them go.
    """
    return ("c", "cz", "ccz")[micro.ledger.s.chunks - 1]


def run_chunk(micro: Micro, graph: Graph, letter: str) -> Value:
    """Run one chunk's table; returns its slice of the hidden states."""
    hidden = micro.hidden
    value = Value(hidden.storage, letter + "h", hidden.unit)
    graph.env["H"], graph.env["L"] = value, micro.labels
    graph.run(blocks.chunk(letter))
    return value


def chunks_backward(micro: Micro) -> None:
    """Recompute and run backward the last chunk, then the first; join their gradients."""
    ledger, tape, head = micro.ledger, micro.ledger.tape, micro.head
    hidden = micro.hidden
    parts: list[Storage] = []
    summed: Storage | None = None
    for letter in reversed(chunk_letters(micro)):
        graph = micro.graph(ledger.named, recompute=True)
        with tape.recording() as events:
            value = run_chunk(micro, graph, letter)
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
        loss.grad = micro.fake("", 4)
        tape.hold(loss.grad)
        graph.backward()
        if cast and node:
            summed = cast.grad
            if len(parts) + 1 == len(chunk_letters(micro)):
                graph.step(node)
        parts.append(value.gradient)
        if letter == "z":
            ledger.emit(("", "uh", hidden.unit), 1, TEMPORARY)
    hidden.grad = head.new("bsh", hidden.unit)
    for part in parts:
        tape.drop(part)
    if len(parts) > 1:
        ledger.emit(("", "uh", hidden.unit), -1, TEMPORARY)


# ---- fused ----
def fused_forward(micro: Micro) -> None:
    """Liger's fused linear cross entropy: gradients of hidden states and weight, chunk by chunk.

    Under autocast (or where types differ) nothing is done in place: the weight is cast, once for
    all and, transposed, once a chunk; two chunks show the difference.
    """
    ledger, tape, head = micro.ledger, micro.ledger.tape, micro.head
    unit = ledger.weight_unit
    head.run(blocks.labels(ledger.s, "LABELS"))
    hidden = tape.alloc("bsh", unit, SAVED)
    trained = ledger.s.trains("head.weight")
    weight = tape.alloc("Vh", unit, GRADIENTS) if trained else None
    losses = tape.alloc("bs", 4, TEMPORARY)
    if not ledger.precision.autocast:
        tape.drop(head.new("lV", unit))
    else:
        for _ in range(min(ledger.s.chunks, 2)):
            transposed, chunk = head.new("Vh", 2), head.new("lh", 2)
            logits = head.new("lV", 2)
            tape.drop(chunk)
            tape.drop(transposed)
            head.release(head.low(head.parameter("head.weight")))
            tape.drop(head.new("lh", 2))
            chunk = head.new("lh", 2)
            tape.drop(logits)
            tape.drop(chunk)
    head.bind("LOSS", head.make("", 4))
    tape.drop(losses)
    head.forget("LABELS")
    micro.made = (hidden, weight)


def fused_backward(micro: Micro) -> None:
    """Hand out the gradients made in forward."""
    micro.hidden.grad, weight = micro.made
    if weight is not None:
        micro.collect("head.weight", weight)
