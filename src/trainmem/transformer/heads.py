"""Loss heads: how logits become a loss, and what the backward pass finds of them.

Three ways. `transformers`: rows of the head's own graph. `chunked`: a checkpoint per chunk of
tokens; the first two chunks and the last are run, those between add only what they leave behind.
`fused`: Liger's function, which makes all gradients in forward, in one chunk-sized buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer import blocks
from trainmem.transformer.replay import GRADIENTS, SAVED, TEMPORARY, Graph, Storage, Value, net

if TYPE_CHECKING:
    from trainmem.transformer.schedule import Micro


def contributions(micro: Micro) -> int:
    """How many gradients of the head's weight the engine sums before it is ready."""
    s = micro.step.s
    each = s.loss_head == "chunked" and not micro.step.precision.autocast
    return (len(chunk_letters(micro)) if each else 1) + s.tied


# ---- chunked ----
def chunks_forward(micro: Micro) -> None:
    """Run the head on chunk after chunk, keeping the hidden states and a loss each."""
    step, head = micro.step, micro.head
    head.run(blocks.LABELS)
    micro.labels = head.env["LABELS"]
    losses: list[Value] = []
    step.emit(("", "m", 512), 1, TEMPORARY)
    for letter in chunk_letters(micro):
        graph = micro.graph(step.root, save=False)
        graph.casts = head.casts
        run_chunk(micro, graph, letter)
        for name in ("Y", "LABELS"):
            storage = head.env[name].storage
            assert storage is not None
            step.tape.hold(storage, SAVED)
        losses.append(graph.take("LOSS"))
    for value in losses:
        head.release(value)
    step.emit(("", "m", 512), -1, TEMPORARY)
    head.bind("LOSS", head.make("", 4))
    head.forget("LABELS")


def chunk_letters(micro: Micro) -> str:
    """Dimensions of the chunks that are run: the first, the second, the last.

    Neither of the first two can stand for the other: in backward the second runs while the hidden
    states are alive, the first lets them go.
    """
    return ("c", "cz", "ccz")[micro.step.s.chunks - 1]


def run_chunk(micro: Micro, graph: Graph, letter: str) -> Value:
    """Run one chunk's table; returns its slice of the hidden states."""
    hidden = micro.hidden
    value = Value(hidden.storage, letter + "h", hidden.unit)
    graph.env["H"], graph.env["L"] = value, micro.labels
    graph.run(blocks.chunk(letter))
    return value


def chunks_backward(micro: Micro) -> None:
    """Recompute and run backward the last chunk, then the first; join their gradients."""
    step, tape, head = micro.step, micro.step.tape, micro.head
    hidden = micro.hidden
    parts: list[Storage] = []
    summed: Storage | None = None
    for letter in reversed(chunk_letters(micro)):
        graph = micro.graph(step.root, recompute=True)
        with tape.recording() as events:
            value = run_chunk(micro, graph, letter)
            cast = graph.casts.get("head.weight")
            graph.clear_casts()
            loss = graph.take("LOSS")
            assert loss.storage is not None
            tape.drop(loss.storage)
        frame = next(node for node in graph.nodes if node.saved)
        for held in (hidden, micro.labels):
            assert held.storage is not None
            frame.saved.append(held.storage)
        recomputed = events[: graph.last_save] + net(events[graph.last_save :], 1)
        tape.events += recomputed
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
        assert value.grad is not None
        parts.append(value.grad)
        if letter == "z":
            step.emit(("", "uh", hidden.unit), 1, TEMPORARY)
    hidden.grad = head.new("bsh", hidden.unit)
    for part in parts:
        tape.drop(part)
    if len(parts) > 1:
        step.emit(("", "uh", hidden.unit), -1, TEMPORARY)


# ---- fused ----
def fused_forward(micro: Micro) -> None:
    """Liger's fused linear cross entropy: gradients of hidden states and weight, chunk by chunk.

    Under autocast (or where types differ) nothing is done in place: the weight is cast, once for
    all and, transposed, once a chunk; two chunks show the difference.
    """
    step, tape, head = micro.step, micro.step.tape, micro.head
    unit = step.weight_unit
    head.run(blocks.LABELS)
    hidden = tape.alloc("bsh", unit, SAVED)
    weight = tape.alloc("Vh", unit, GRADIENTS)
    losses = tape.alloc("bs", 4, TEMPORARY)
    if not step.precision.autocast:
        tape.drop(head.new("lV", unit))
    else:
        for _ in range(min(step.s.chunks, 2)):
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
    assert micro.made is not None
    micro.hidden.grad, weight = micro.made
    micro.made = None
    micro.collect("head.weight", weight)
