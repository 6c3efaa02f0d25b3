"""Operations of fused kernels, of parallel axes, of experts and of adapters.

Same form as `ops`: what each allocates, saves and gives back. None of these is traced; they follow
the stacks' sources (Transformer Engine `module/linear.py`, `layernorm_linear.py`; Liger-Kernel
`ops/`; torchtitan and PyTorch `tensor/parallel`) and reproduce published measurements.
"""

from __future__ import annotations

from trainmem.transformer.engine.dims import BS, PER_HEAD, SCALAR, SCORES, R, S, Shape
from trainmem.transformer.engine.graph import Grads, Graph, Operation, Row, Value
from trainmem.transformer.engine.ops import one_kernel
from trainmem.transformer.engine.tape import Storage


def rms_norm(graph: Graph, row: Row) -> None:
    """Norm in one kernel: saves its input and one fp32 statistic a token (`shape`)."""
    x, w = graph.env[row.ins], graph.parameter(row.weight)
    out = graph.make(x.shape, x.unit)
    stat = graph.new(row.shape, 4)

    def backward(g: Storage) -> Grads:
        return graph.gradients(*(v for v in (x, w) if v.needs))

    graph.node((out,), backward, x.storage, stat)
    graph.tape.drop(stat)
    graph.bind(row.out, out)


def complex_rotary(graph: Graph, row: Row) -> None:
    """Rotary embedding by complex products in fp32 (torchtitan, Meta's Llama): nothing saved."""
    x = graph.env[row.ins]
    wide, turned = graph.new(x.shape, 4), graph.new(x.shape, 4)
    out = graph.make(x.shape, x.unit)
    graph.tape.drop(wide)
    graph.tape.drop(turned)

    def backward(g: Storage) -> Grads:
        wide, turned = graph.new(x.shape, 4), graph.new(x.shape, 4)
        grads = graph.gradients(x)
        graph.tape.drop(wide)
        graph.tape.drop(turned)
        return grads

    graph.node((out,), backward)
    graph.bind(row.out, out)


def gated(graph: Graph, row: Row) -> None:
    """Activation of a gate times the other half, in one kernel: saves both."""
    gate, up = (graph.env[name] for name in row.ins.split())
    out = graph.make(up.shape, up.unit)

    def backward(g: Storage) -> Grads:
        return graph.gradients(gate, up)

    graph.node((out,), backward, gate.storage, up.storage)
    graph.bind(row.out, out)


def gather(graph: Graph, row: Row) -> None:
    """Gather the sequence from the tensor-parallel ranks; its gradient is reduced and scattered."""
    x = graph.env[row.ins]
    out = graph.make(row.shape, x.unit)
    one_kernel(graph, row, x, out)


def parallel_product(graph: Graph, row: Row) -> None:
    """Multiply as Transformer Engine does: the collectives of sequence parallelism inside.

    Between a divided sequence (R) and a whole one, whichever side is which. Saved is the input as
    it came, divided; backward gathers it again. The weight's gradient is added to the main one in
    place and allocates nothing (`fuse_wgrad_accumulation`).
    """
    x, w = graph.env[row.ins], graph.parameter(row.weight + ".weight")
    inside, outside = R in x.shape, R in row.shape
    whole = graph.new(_undivided(x.shape), x.unit) if inside else None
    part = graph.new(_undivided(row.shape), w.unit) if outside else None
    out = graph.make(row.shape, w.unit)
    for storage in (whole, part):
        if storage:
            graph.tape.drop(storage)

    def backward(g: Storage) -> Grads:
        wide = graph.new(_undivided(row.shape), w.unit) if outside else None
        again = graph.new(_undivided(x.shape), x.unit) if inside else None
        partial = graph.new(_undivided(x.shape), x.unit) if inside else None
        dx = graph.new(x.shape, x.unit)
        for storage in (wide, again, partial):
            if storage:
                graph.tape.drop(storage)
        return [(x, dx, x.shape, x.unit)]

    graph.node((out,), backward, x.storage)
    graph.bind(row.out, out)


def _undivided(shape: Shape) -> Shape:
    """Return the shape of a tensor whose sequence the ranks have gathered."""
    return tuple(S if dim is R else dim for dim in shape)


def flash_recomputed(graph: Graph, row: Row) -> None:
    """Attention whose output stays for the next product, and whose statistics are recomputed."""
    q, k, v = (graph.env[name] for name in row.ins.split())
    out = graph.make(q.shape, q.unit)
    graph.tape.drop(graph.new(PER_HEAD, 4))

    def backward(g: Storage) -> Grads:
        again, stat = graph.new(q.shape, q.unit), graph.new(PER_HEAD, 4)
        grads = graph.gradients(q, k, v)
        graph.tape.drop(again)
        graph.tape.drop(stat)
        return grads

    graph.node((out,), backward, q.storage, k.storage, v.storage)
    graph.bind(row.out, out)


def _scores_recomputed(dropped: bool) -> Operation:
    """Attention with stored scores under selective recomputation: all is made again in backward.

    Its inputs and its output are saved (`checkpoint` of core attention; Korthikanti et al. 2022,
    §5); in between live scores, softmax and, with dropout, its mask and output.
    """

    def scores(graph: Graph, unit: int) -> list[Storage]:
        raw, soft = graph.new(SCORES, unit), graph.new(SCORES, unit)
        graph.tape.drop(raw)
        return [soft, *([graph.new(SCORES, 1), graph.new(SCORES, unit)] if dropped else [])]

    def attention(graph: Graph, row: Row) -> None:
        q, k, v = (graph.env[name] for name in row.ins.split())
        inside = scores(graph, q.unit)
        turned = graph.new(q.shape, q.unit)
        out = graph.make(q.shape, q.unit)
        for storage in (*inside, turned):
            graph.tape.drop(storage)

        def backward(g: Storage) -> Grads:
            again = scores(graph, q.unit)
            of_scores = [graph.new(SCORES, q.unit) for _ in range(2)]  # of softmax, of its input
            grads = graph.gradients(q, k, v)
            for storage in (*again, *of_scores):
                graph.tape.drop(storage)
            return grads

        graph.node((out,), backward, q.storage, k.storage, v.storage)
        graph.bind(row.out, out)

    return attention


def kept(graph: Graph, row: Row) -> None:
    """Keep bytes until the backward pass reaches this row: `shape` elements of `unit` each.

    For what was measured on a GPU and is known by its size alone. `ins` passes through.
    """
    x = graph.env[row.ins]
    if row.unit is None:
        raise AssertionError("what is kept has a size")
    extra = graph.new(row.shape, row.unit)
    out = Value(graph.tape.hold(x.storage), x.shape, x.unit, x.needs)
    graph.node((out,), lambda g: [(x, graph.share(g), x.shape, x.unit)], extra)
    graph.tape.drop(extra)
    graph.bind(row.out, out)


def masked(graph: Graph, row: Row) -> None:
    """Dropout fused with the residual sum: saves a mask of one byte an element."""
    x = graph.env[row.ins]
    mask = graph.new(x.shape, 1)
    out = Value(graph.tape.hold(x.storage), x.shape, x.unit)
    one_kernel(graph, row, x, out, mask)
    graph.tape.drop(mask)


def receive(graph: Graph, row: Row) -> None:
    """Take a tensor from the stage before."""
    graph.bind(row.out, graph.make(row.shape, graph.precision.weight))


def routed(graph: Graph, row: Row) -> None:
    """Copy tokens to (or from) the order of their experts, changing how many there are."""
    x = graph.env[row.ins]
    out = graph.make(row.shape, x.unit)
    one_kernel(graph, row, x, out)


def weighted(graph: Graph, row: Row) -> None:
    """Expert outputs times their probability: saves both."""
    x, p = (graph.env[name] for name in row.ins.split())
    out = graph.make(x.shape, x.unit)

    def backward(g: Storage) -> Grads:
        return graph.gradients(x, p)

    graph.node((out,), backward, x.storage, p.storage)
    graph.bind(row.out, out)


def chosen(graph: Graph, row: Row) -> None:
    """Top experts' probabilities out of all: the gradient is as wide as all."""
    x = graph.env[row.ins]
    out = graph.make(row.shape, x.unit)
    one_kernel(graph, row, x, out)


def widen(graph: Graph, row: Row) -> None:
    """Cast an adapter's input to its type (peft: fp32 adapters on a bf16 base)."""
    graph.bind(row.out, graph.cast(graph.env[row.ins], graph.adapter_unit))


def loss_by_vocabulary(graph: Graph, row: Row) -> None:
    """Megatron's cross entropy (`_VocabParallelCrossEntropy`): an fp32 copy of the logits.

    It is turned into probabilities in place, then into a gradient in place.
    """
    x = graph.cast(graph.env[row.ins], 4)
    out = graph.make(SCALAR, 4)
    graph.node((out,), lambda g: [(x, graph.share(x.storage), x.shape, x.unit)], x.storage)
    graph.bind(row.out, out)
    graph.release(x)


def _loss_of(bytes_of_gradient: float, in_place: bool = False) -> Operation:
    """Cross entropy in one kernel on bf16 logits, which it saves with a statistic a token.

    Backward makes a gradient of that many bytes an element, or overwrites the logits.
    """

    def loss(graph: Graph, row: Row) -> None:
        x = graph.env[row.ins]
        out, stat = graph.make(SCALAR, 4), graph.new(BS, 4)

        def backward(g: Storage) -> Grads:
            if in_place:
                return [(x, graph.share(x.storage), x.shape, x.unit)]
            return [(x, graph.new(x.shape, bytes_of_gradient), x.shape, x.unit)]

        graph.node((out,), backward, x.storage, stat)
        graph.tape.drop(stat)
        graph.bind(row.out, out)

    return loss


scores_recomputed = _scores_recomputed(dropped=False)
scores_recomputed_dropped = _scores_recomputed(dropped=True)
loss_compiled = _loss_of(2)
loss_in_place = _loss_of(2, in_place=True)
loss_pieces = _loss_of(1.5)
