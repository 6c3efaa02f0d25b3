"""What PyTorch's operations allocate, save and give back, one short function each.

Transcribed from the formulas in `derivatives.yaml` and from event logs of real steps; the order of
allocations inside a backward kernel is the order seen there (gradients come in the alphabetical
order of the arguments: `mat2` before `self`, `other` before `self`).
"""

from __future__ import annotations

from trainmem.transformer.engine.dims import BS, D_ACC, PER_HEAD, S_32, S_128, SCALAR, A, B, Shape
from trainmem.transformer.engine.graph import Grads, Graph, Row, Value
from trainmem.transformer.engine.tape import SAVED, TEMPORARY, Role, Storage


def one_kernel(graph: Graph, row: Row, x: Value, out: Value, *saved: Storage) -> None:
    """Record an operation of one kernel each way: its gradient is a new tensor like its input."""
    graph.node((out,), lambda g: graph.gradients(x), *saved)
    graph.bind(row.out, out)


def passes(graph: Graph, row: Row, x: Value, out: Value) -> None:
    """Record an operation whose gradient passes as it is."""
    graph.node((out,), lambda g: [(x, graph.share(g), out.shape, out.unit)])
    graph.bind(row.out, out)


def after_two_temporaries(graph: Graph, x: Value) -> Grads:
    """Allocate a gradient like the input, made from two products that go then."""
    a, b = graph.new(x.shape, x.unit), graph.new(x.shape, x.unit)
    grads = graph.gradients(x)
    graph.tape.drop(b)
    graph.tape.drop(a)
    return grads


def passing(graph: Graph, row: Row) -> None:
    """`x + constant`: the gradient passes through."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    passes(graph, row, x, out)


def scale(graph: Graph, row: Row) -> None:
    """`x * constant`."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    one_kernel(graph, row, x, out)


def power(graph: Graph, row: Row) -> None:
    """`x ** n`: autocast raises it to fp32; backward `g * (n * x ** (n - 1))`."""
    x = graph.cast(graph.env[row.ins], 4 if graph.precision.autocast else graph.env[row.ins].unit)
    out = graph.make(x.shape, x.unit)
    graph.node((out,), lambda g: after_two_temporaries(graph, x), x.storage)
    graph.bind(row.out, out)
    graph.release(x)


def mean(graph: Graph, row: Row) -> None:
    """Mean over the last dimension."""
    x = graph.env[row.ins]
    out = graph.make(row.shape, x.unit)
    one_kernel(graph, row, x, out)


def rsqrt(graph: Graph, row: Row) -> None:
    """`1 / sqrt(x)`, saved; backward `-0.5 * g * out ** 3`."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    graph.node((out,), lambda g: after_two_temporaries(graph, x), out.storage)
    graph.bind(row.out, out)


def activation(graph: Graph, row: Row) -> None:
    """SiLU: one kernel each way, saves its input."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    one_kernel(graph, row, x, out, x.storage)


def tanh(graph: Graph, row: Row) -> None:
    """Tanh: saves its output."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    one_kernel(graph, row, x, out, out.storage)


def like(graph: Graph, row: Row) -> None:
    """`x.to(y.dtype)`."""
    x, y = row.ins.split()
    graph.bind(row.out, graph.cast(graph.env[x], graph.env[y].unit))


def float32(graph: Graph, row: Row) -> None:
    """`x.float()`."""
    graph.bind(row.out, graph.cast(graph.env[row.ins], 4))


def add(graph: Graph, row: Row) -> None:
    """Add: both operands share the gradient of the sum."""
    a, b = (graph.env[name] for name in row.ins.split())
    out = graph.make(a.shape, max(a.unit, b.unit))

    def backward(g: Storage) -> Grads:
        return [(v, graph.share(g), out.shape, out.unit) for v in (a, b) if v.needs]

    graph.node((out,), backward)
    graph.bind(row.out, out)


def multiply(graph: Graph, row: Row) -> None:
    """Multiply by something narrower, a weight or a constant: each operand saves the other."""
    a = graph.parameter(row.weight) if row.weight else graph.env[row.ins.split()[0]]
    b = graph.env[row.ins.split()[-1]]
    shape = b.shape if row.weight else a.shape
    unit = max(a.unit, b.unit)
    out = graph.make(shape, unit)

    def backward(g: Storage) -> Grads:
        grads = [(v, graph.new(shape, unit), shape, unit) for v in (b, a) if v.needs]
        return grads[::-1]

    saved = [other.storage for v, other in ((a, b), (b, a)) if v.needs]
    graph.node((out,), backward, *saved)
    graph.bind(row.out, out)


def rotate(graph: Graph, row: Row) -> None:
    """`cat(-x2, x1)` of the two halves of the head dimension (rotary embedding)."""
    x = graph.env[row.ins]
    half = graph.new(x.shape, x.unit // 2)
    out = graph.make(x.shape, x.unit)
    graph.tape.drop(half)

    def negated(g: Storage) -> Grads:
        half = graph.new(x.shape, x.unit // 2)
        dx = graph.new(x.shape, x.unit)
        graph.tape.drop(half)
        return [(x, dx, x.shape, x.unit), (x, graph.new(x.shape, x.unit), x.shape, x.unit)]

    graph.node((out,), negated)
    graph.bind(row.out, out)


def linear(graph: Graph, row: Row) -> None:
    """`x @ W.T (+ bias)`: weight gradient first, then input gradient (`mm`)."""
    _product(graph, row, weight_first=True)


def conv1d(graph: Graph, row: Row) -> None:
    """`addmm(bias, x, W)`: input gradient, weight gradient, bias gradient."""
    _product(graph, row, weight_first=False)


def _product(graph: Graph, row: Row, weight_first: bool) -> None:
    name = row.weight + ".weight"
    w = graph.low(graph.parameter(name))
    x = graph.low(graph.env[row.ins])
    has_bias = row.weight + ".bias" in graph.parameters
    bias = graph.low(graph.parameter(row.weight + ".bias")) if has_bias else None
    at = len(graph.tape.events)
    out = graph.make(row.shape, w.unit)

    def dx() -> tuple[Value, Storage, Shape, int]:
        return (x, graph.new(x.shape, x.unit), x.shape, x.unit)

    def dw() -> tuple[Value, Storage, Shape, int]:
        return (w, graph.tape.alloc(w.shape, w.unit, TEMPORARY), w.shape, w.unit)

    # A frozen weight has no gradient and needs no input for it, nor does the input of the first
    # adapters (LoRA). A quantised weight is unpacked for its product, in both directions.
    packed = graph.quantized and not w.needs and graph.parameters[name].role is Role.PRODUCT

    def backward(g: Storage) -> Grads:
        if not w.needs:
            unpacked = graph.new(w.shape, w.unit) if packed else None
            grads = [dx()]
            if unpacked:
                graph.tape.drop(unpacked)
            return grads
        order = (dw, dx) if weight_first and bias is None else (dx, dw)
        grads = [one() for one in order if one is dw or x.needs]
        if bias is not None:
            grads.append((bias, graph.share(g), out.shape, out.unit))
        return grads

    if packed:
        graph.tape.drop(graph.tape.alloc(w.shape, w.unit, TEMPORARY))
    saved = [other.storage for v, other in ((x, w), (w, x)) if v.needs]
    graph.node((out,), backward, *saved, at=at)
    graph.bind(row.out, out)
    for value in (w, x, bias):
        if value is not None:
            graph.release(value)


def layer_norm(graph: Graph, row: Row) -> None:
    """Fused LayerNorm: saves input and fp32 statistics; autocast runs it in fp32."""
    source = graph.env[row.ins]
    x = graph.cast(source, 4 if graph.precision.autocast else source.unit)
    w, b = graph.parameter(row.weight + ".weight"), graph.parameter(row.weight + ".bias")
    out = graph.make(x.shape, x.unit)
    mu, rstd = graph.new(BS, 4), graph.new(BS, 4)

    def backward(g: Storage) -> Grads:
        return graph.gradients(*(v for v in (x, w, b) if v.needs))

    graph.node((out,), backward, x.storage, mu, rstd)
    graph.tape.drop(mu)
    graph.tape.drop(rstd)
    graph.bind(row.out, out)
    graph.release(x)


def split(graph: Graph, row: Row) -> None:
    """View one product as q, k, v; their gradients are concatenated."""
    x = graph.env[row.ins]
    outs = []
    for name in row.out.split():
        outs.append(Value(graph.tape.hold(x.storage), row.shape, x.unit))
        graph.bind(name, outs[-1])

    graph.node(tuple(outs), lambda *g: graph.gradients(x))


def heads(graph: Graph, row: Row) -> None:
    """View as heads, transposed: the gradient comes back in another order and is copied."""
    x = graph.env[row.ins]
    out = Value(graph.tape.hold(x.storage), x.shape, x.unit)
    one_kernel(graph, row, x, out)


def copy(graph: Graph, row: Row) -> None:
    """`contiguous()` or `reshape()` that copies; the gradient passes."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    passes(graph, row, x, out)


def cached(graph: Graph, row: Row) -> None:
    """Append keys or values to an empty cache (`DynamicLayer.update`): a copy, which it keeps.

    A recomputation appends to the same cache: what that doubles for a moment is left out.
    """
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    graph.node((out,), lambda g: [(x, graph.share(g), x.shape, x.unit)])
    if not graph.recompute:
        graph.cache.append(graph.tape.hold(out.storage, SAVED))
    graph.bind(row.out, out)


def relayout(graph: Graph, row: Row) -> None:
    """Transpose and make contiguous: copies in both directions."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    one_kernel(graph, row, x, out)


def operand(graph: Graph, row: Row) -> None:
    """Lower an operand of a matrix product as autocast does."""
    graph.bind(row.out, graph.low(graph.env[row.ins]))


def repeat(graph: Graph, row: Row) -> None:
    """Repeat key/value heads to the query heads: a copy; the gradient is summed back."""
    x = graph.env[row.ins]
    out = graph.make(row.shape, x.unit)
    passes(graph, row, x, out)


def expand(graph: Graph, row: Row) -> None:
    """Repeat one head as a view; the gradient is summed back."""
    x = graph.env[row.ins]
    out = Value(graph.tape.hold(x.storage), row.shape, x.unit)
    passes(graph, row, x, out)


def flash(graph: Graph, row: Row, grouped: bool = False) -> None:
    """Flash attention: saves q, k, v, its output, the fp32 log-sum-exp and two seeds.

    Backward allocates an fp32 accumulator for dq, and with grouped heads dk and dv at all heads.
    """
    q, k, v = (graph.low(graph.env[name]) for name in row.ins.split())
    out = graph.make(q.shape, q.unit)
    rest = [graph.new(PER_HEAD, 4), graph.new(SCALAR, 16), graph.new(SCALAR, 8)]

    def backward(g: Storage) -> Grads:
        grads = graph.gradients(q, k, v)
        of_query: Shape = (B, A, S_128, D_ACC)
        scratch = [
            graph.new(shape, 4) for shape in ((of_query, q.shape) if grouped else (of_query,))
        ]
        for storage in scratch:
            graph.tape.drop(storage)
        return grads

    graph.node((out,), backward, q.storage, k.storage, v.storage, out.storage, *rest)
    for storage in rest:
        graph.tape.drop(storage)
    graph.bind(row.out, out)
    for value in (q, k, v):
        graph.release(value)


def flash_grouped(graph: Graph, row: Row) -> None:
    """Flash attention with fewer key/value heads than query heads."""
    flash(graph, row, grouped=True)


def efficient(graph: Graph, row: Row) -> None:
    """Memory-efficient attention, which PyTorch picks for fp32; no scratch beyond its outputs."""
    q, k, v = (graph.env[name] for name in row.ins.split())
    out = graph.make(q.shape, q.unit)
    rest = [graph.new((B, A, S_32), 4), graph.new(SCALAR, 8), graph.new(SCALAR, 8)]

    def backward(g: Storage) -> Grads:
        return graph.gradients(q, k, v)

    graph.node((out,), backward, q.storage, k.storage, v.storage, out.storage, *rest)
    for storage in rest:
        graph.tape.drop(storage)
    graph.bind(row.out, out)


def batched(graph: Graph, row: Row) -> None:
    """Batched product of two activations; gradient of the second operand first."""
    a, b = (graph.low(graph.env[name]) for name in row.ins.split())
    out = graph.make(row.shape, a.unit)

    def backward(g: Storage) -> Grads:
        grads = graph.gradients(*(t for t in (b, a) if t.needs))
        return grads[::-1]

    graph.node((out,), backward, *(t.storage for t, other in ((a, b), (b, a)) if other.needs))
    graph.bind(row.out, out)
    graph.release(a)
    graph.release(b)


def softmax(graph: Graph, row: Row) -> None:
    """Softmax: saves its output; autocast runs it in fp32."""
    source = graph.env[row.ins]
    x = graph.cast(source, 4 if graph.precision.autocast else source.unit)
    out = graph.make(x.shape, x.unit)
    one_kernel(graph, row, x, out, out.storage)
    graph.release(x)


def dropout(graph: Graph, row: Row) -> None:
    """Dropout: saves a mask of one byte an element."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    mask = graph.new(x.shape, 1)
    one_kernel(graph, row, x, out, mask)
    graph.tape.drop(mask)


def embedding(graph: Graph, row: Row) -> None:
    """Look rows up and save which (token ids outlive the step); the gradient is a whole table."""
    w = graph.parameter(row.weight)
    out = graph.make(row.shape, w.unit)

    def backward(g: Storage) -> Grads:
        return [(w, graph.tape.alloc(w.shape, w.unit, TEMPORARY), w.shape, w.unit)]

    if w.needs:
        graph.node((out,), backward, *(graph.env[name].storage for name in row.ins.split()))
    graph.bind(row.out, out)


def fixed(graph: Graph, row: Row) -> None:
    """Make a tensor without gradient, in the weights' type where the row gives no other."""
    unit = graph.precision.weight if row.unit is None else int(row.unit)
    graph.bind(row.out, graph.make(row.shape, unit, needs=False))


def lower(graph: Graph, row: Row) -> None:
    """`x.to(dtype of the weights)`."""
    graph.bind(row.out, graph.cast(graph.env[row.ins], graph.precision.weight))


def same(graph: Graph, row: Row) -> None:
    """Another name, or a view, of the same tensor."""
    x = graph.env[row.ins]
    graph.bind(row.out, graph.cast(x, x.unit))


def log_softmax(graph: Graph, row: Row) -> None:
    """Log-softmax: saves its output, as wide as the vocabulary."""
    x = graph.env[row.ins]
    out = graph.make(x.shape, x.unit)
    one_kernel(graph, row, x, out, out.storage)


def nll_loss(graph: Graph, row: Row) -> None:
    """Make the mean loss and its weight, two scalars; saves log-probabilities and labels."""
    x, labels = (graph.env[name] for name in row.ins.split())
    out, total = graph.make(SCALAR, 4), graph.new(SCALAR, 4)
    graph.node(
        (out,),
        lambda g: graph.gradients(x),
        x.storage,
        labels.storage,
        total,
    )
    graph.tape.drop(total)
    graph.bind(row.out, out)
