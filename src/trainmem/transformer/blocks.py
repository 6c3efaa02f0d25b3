"""Tables of tensors: the operations of each block, in the order transformers runs them.

A row is `(name, operation, inputs, weight, elements)`. A tensor dies after the last row that
mentions it unless autograd saved it; `end` rows name variables that Python's frames keep alive
longer (a function's locals live to its return). Upper-case names belong to the caller.

Transcribed from transformers 5 (`modeling_llama.py`, `modeling_qwen3.py`, `modeling_gpt2.py`,
`loss_utils.py`); the tables of Llama, Mistral, Qwen2 and Qwen3 differ only in biases and in the
norms of queries and keys.
"""

from __future__ import annotations

from trainmem.transformer.replay import Row as R
from trainmem.transformer.states import Structure

Table = tuple[R, ...]


def rms_norm(x: str, out: str, weight: str, dims: str = "bsh", stat: str = "bs") -> Table:
    """Root-mean-square norm, written in fp32 and not fused."""
    p = out + "."
    return (
        R(p + "x", "float", x),
        R(p + "square", "power", p + "x"),
        R(p + "mean", "mean", p + "square", dims=stat),
        R(p + "eps", "add_constant", p + "mean"),
        R(p + "r", "rsqrt", p + "eps"),
        R(p + "n", "multiply", f"{p}x {p}r"),
        R(p + "low", "like", f"{p}n {x}"),
        R(out, "multiply", p + "low", weight),
        R("", "end", f"{p}n {p}mean"),
    )


def rotary(x: str, out: str) -> Table:
    """Rotary embedding of queries or keys: three temporaries."""
    p = out + "."
    return (
        R(p + "a", "multiply", f"{x} COS"),
        R(p + "r", "rotate", x),
        R(p + "b", "multiply", f"{p}r SIN"),
        R(out, "add", f"{p}a {p}b"),
    )


def flash(s: Structure, row: R) -> Table:
    """Write a row of flash attention, whose head sizes are multiples of 8; others as they are.

    Other sizes are padded in copies, and the output is cut back in one more (`pad_last_dim` and
    `post_process_flash_output` in PyTorch's `attention.cpp`).
    """
    if not s.padded_heads or row.op not in ("flash", "flash_grouped"):
        return (row,)
    low, wide = (tuple(f"{row.out}.{name}{mark}" for name in "qkv") for mark in "lw")
    others = "bsK" if row.op == "flash_grouped" else "bsQ"
    widths = ("bsQ", others, others)
    return (
        *(R(name, "operand", x) for name, x in zip(low, row.ins.split(), strict=True)),
        *(R(w, "routed", x, dims=d) for w, x, d in zip(wide, low, widths, strict=True)),
        R(row.out + ".w", row.op, " ".join(wide)),
        R("", "end", " ".join(low)),
        R(row.out, "routed", row.out + ".w", dims="bsq"),
    )


def attention(s: Structure) -> Table:
    """From q, k, v to the output `a`.

    `flash`; `efficient` and `math`, which PyTorch takes for fp32 (the second, quadratic, where key
    and value heads are fewer: no fused kernel has both); or `eager`, as transformers writes it.
    """
    kernel, grouped = s.kernel, s.grouped
    wide: Table = ()
    k, v = "k", "v"
    if grouped and kernel != "flash":
        widen = "expand" if s.one_kv and kernel == "eager" else "repeat"
        wide = (R("kk", widen, "k", dims="bsq"), R("vv", widen, "v", dims="bsq"))
        k, v = "kk", "vv"
    if kernel == "flash":
        return flash(s, R("a", "flash_grouped" if grouped else "flash", "q k v"))
    if kernel == "efficient":
        return (*wide, R("a", "efficient", f"q {k} {v}"))
    score = "bass"  # one number per sequence, head and pair of tokens
    # Batched products want sequences and heads as one dimension, which takes a copy of heads that
    # were transposed, unless there is only one sequence.
    flat = "same" if s.single else "copy"
    # Keys and values that were repeated or came through a cache are copies; one head is a view.
    apart = "same" if not s.one_kv and (grouped or s.use_cache) else flat
    back = R("a", "copy" if s.single else "relayout", "ao")
    if kernel == "math":
        return (
            R("qs", "scale", "q"),
            R("ones", "fixed", dims="ss:1"),
            R("tril", "fixed", "ones", dims="ss:1"),
            R("bias", "fixed", "tril", dims="ss:4"),
            *wide,
            R("ks", "scale", k),
            R("qc", flat, "qs"),
            R("sc", "batched", "qc ks", dims=score),
            R("mk", "add", "sc bias"),
            R("pr", "softmax", "mk"),
            R("at", "dropout" if s.dropout else "same", "pr"),
            R("ao", "batched", f"at {v}", dims="bsq"),
            R("", "end", f"{k} qs bias"),
            back,
        )
    return (
        *wide,
        R("kl", "operand", k),
        R("ql", "operand", "q"),
        R("qc", flat, "ql"),
        R("kc", apart if not s.one_kv or s.precision != "amp" else "same", "kl"),
        R("sc", "batched", "qc kc", dims=score),
        R("", "end", "ql kl"),
        R("sm", "scale", "sc"),
        R("mk", "add", "sm MASK"),
        R("mf", "same" if s.gpt2 else "float", "mk"),
        R("pr", "softmax", "mf"),
        R("pl", "like", "pr v" if s.gpt2 else "pr q"),
        *(() if s.gpt2 else (R("", "end", "mk"),)),
        R("at", "dropout" if s.dropout else "same", "pl"),
        R("vl", "operand", v),
        R("al", "operand", "at"),
        R("vc", apart, "vl"),
        R("ao", "batched", "al vc", dims="bsq"),
        back,
        R("", "end", f"{k} {v}"),
    )


#: SwiGLU, from the normalised `z` to `m`.
GATED: Table = (
    R("g", "linear", "z", "gate", "bsf"),
    R("sg", "silu", "g"),
    R("u", "linear", "z", "up", "bsf"),
    R("gu", "multiply", "sg u"),
    R("m", "linear", "gu", "down", "bsh"),
)


def experts() -> Table:
    """Router and grouped products of Mixtral and Qwen3-MoE, "t" tokens in all for the experts.

    `modeling_mixtral.py` with grouped products: tokens are copied once per expert, put in the order
    of the experts, and back.
    """
    return (
        R("rl", "linear", "z", "router", "bsn"),
        R("rf", "float", "rl"),
        R("rp", "softmax", "rf"),
        R("pr", "chosen", "rp", dims="t"),
        R("sel", "routed", "z", dims="th"),
        R("tz", "routed", "sel", dims="th"),
        R("g", "linear", "tz", "gate", "tf"),
        R("u", "linear", "tz", "up", "tf"),
        R("sg", "silu", "g"),
        R("gu", "multiply", "sg u"),
        R("tm", "linear", "gu", "down", "th"),
        R("tw", "weighted", "tm pr"),
        R("tb", "routed", "tw", dims="th"),
        R("m", "routed", "tb", dims="bsh"),
    )


#: Keys and values through a cache that is empty: what attention then reads.
CACHED: Table = (R("k", "cached", "k1"), R("v", "cached", "v1"))


def llama_layer(s: Structure) -> Table:
    """One layer of Llama, Mistral, Qwen2 or Qwen3; `x` in, `OUT` out."""
    qk_norm = s.qk_norm
    turned = "same" if s.one_kv else "heads"  # one head needs no copy to turn back
    k, v = ("k1", "v1") if s.use_cache else ("k", "v")
    rows: list[R] = [*rms_norm("X", "y", "norm1")]
    if qk_norm:
        rows += [
            R("qp", "linear", "y", "q", "bsq"),
            R("qv", "heads", "qp"),
            *rms_norm("qv", "q0", "q_norm", stat="bsa"),
            R("", "end", "qp qv"),
            R("kp", "linear", "y", "k", "bsk"),
            R("kv", turned, "kp"),
            *rms_norm("kv", "k0", "k_norm", stat="bsg"),
            R("", "end", "kp kv"),
        ]
    else:
        rows += [
            R("qp", "linear", "y", "q", "bsq"),
            R("q0", "heads", "qp"),
            R("kp", "linear", "y", "k", "bsk"),
            R("k0", turned, "kp"),
        ]
    rows += [
        R("vp", "linear", "y", "v", "bsk"),
        R(v, "same" if s.direct_gradients else turned, "vp"),
        R("", "end", "qp kp vp" if not qk_norm else "vp"),
        *rotary("q0", "q"),
        *rotary("k0", k),
        R("", "end", "q0 k0"),
        *(CACHED if s.use_cache else ()),
        *attention(s),
        R("o", "linear", "a", "o", "bsh"),
        R("", "end", "q k v a"),
        R("", "end", "y"),
        R("x1", "add", "X o"),
        *rms_norm("x1", "z", "norm2"),
        *(experts() if s.experts else GATED),
        R("", "end", "z"),
        R("OUT", "add", "x1 m"),
        R("", "end", "x1 at" if s.kernel == "eager" else "x1"),
    ]
    return tuple(rows)


def gpt2_layer(s: Structure) -> Table:
    """One GPT-2 block with the unfused `gelu_new`."""
    dropped = "dropout" if s.dropout else "same"
    turned = "" if s.direct_gradients else "kvq" if s.kernel == "flash" else "vq"

    def name(n: str) -> str:
        return n + "1" if s.use_cache and n in "kv" else n

    return (
        R("y", "layer_norm", "X", "norm1"),
        R("qkv", "conv1d", "y", "qkv", "bsw"),
        R("q0 k0 v0", "split", "qkv", dims="bsq"),
        *(R(name(n), "heads" if n in turned else "same", n + "0") for n in "kvq"),
        *(CACHED if s.use_cache else ()),
        *attention(s),
        R("o", "conv1d", "a", "o", "bsh"),
        R("od", dropped, "o"),
        R("", "end", "q k v q0 k0 v0 qkv"),
        R("x1", "add", "od X"),
        R("", "end", "y"),
        R("z", "layer_norm", "x1", "norm2"),
        R("u", "conv1d", "z", "up", "bsf"),
        R("half", "scale", "u"),
        R("cube", "power", "u"),
        R("c", "scale", "cube"),
        R("t", "add", "u c"),
        R("ts", "scale", "t"),
        R("th", "tanh", "ts"),
        R("t1", "add_constant", "th"),
        R("gu", "multiply", "half t1"),
        R("", "end", "u"),
        R("m", "conv1d", "gu", "down", "bsh"),
        R("md", dropped, "m"),
        R("OUT", "add", "x1 md"),
        R("", "end", "z od x1 md at" if s.kernel == "eager" else "z od x1 md"),
    )


#: Cosine and sine tables of the rotary embedding, computed in fp32 once a forward pass.
ROTARY_TABLES: Table = (
    R("pos", "fixed", dims="s:4"),
    R("fr", "fixed", "pos", dims="sd:2"),
    R("emb", "fixed", dims="sd:4"),
    R("c0", "fixed", dims="sd:4"),
    R("c1", "fixed", "c0", dims="sd:4"),
    R("s0", "fixed", dims="sd:4"),
    R("s1", "fixed", "s0", dims="sd:4"),
    R("COS", "lower", "c1"),
    R("SIN", "lower", "s1"),
    R("", "end", "fr emb c1 s1"),
)

#: The causal mask that eager attention adds: one per sequence, in the weights' type.
MASK: Table = (
    R("causal", "fixed", dims="ss:1"),
    R("MASK", "fixed", "causal", dims="bss:w"),
)

POSITIONS: Table = (
    R("p0", "fixed", dims="s:8"),
    R("IDS", "fixed", "p0", dims="s:8"),
)


def embedding(s: Structure) -> Table:
    """From token ids to the first layer's input `X`."""
    eager, drop = s.attention == "eager", s.dropout
    if s.gpt2:
        return (
            R("TOKENS", "embedding", "", "embed", "bsh"),
            *POSITIONS,
            R("PLACES", "embedding", "IDS", "position", "bsh" if s.single else "sh"),
            R("sum" if drop else "X", "add", "TOKENS PLACES"),
            *(MASK if eager else ()),
            *((R("X", "dropout", "sum"),) if drop else ()),
        )
    return (
        R("X", "embedding", "", "embed", "bsh"),
        *POSITIONS,
        *(MASK if eager else ()),
        *ROTARY_TABLES,
    )


def final_norm(s: Structure) -> Table:
    """Norm in front of the head."""
    return (R("Y", "layer_norm", "X", "norm"),) if s.gpt2 else rms_norm("X", "Y", "norm")


def labels(s: Structure, name: str) -> Table:
    """Labels shifted by one token: padded, then copied, unless one sequence needs no copy."""
    shifted = R(name, "same", "pad") if s.single else R(name, "fixed", dims="bs:8")
    return (R("pad", "fixed", dims="bi:8"), shifted)


def cross_entropy(s: Structure) -> Table:
    """Cross entropy as transformers computes it: an fp32 copy of the logits, log-softmax."""
    return (
        R("lf", "float", "LOGITS"),
        *labels(s, "labels"),
        R("lp", "log_softmax", "lf"),
        R("LOSS", "nll_loss", "lp labels"),
        R("", "end", "lf pad"),
    )


def held_logits(s: Structure) -> Table:
    """Logits that the model returns, in fp32 but for GPT-2's (transformers before 4.45)."""
    return (R("OUTPUT", "same" if s.gpt2 else "float", "LOGITS"),)


def held_cross_entropy(s: Structure) -> Table:
    """Cross entropy of logits and labels without the last token of each sequence.

    Copies, unless one sequence makes them views.
    """
    return (
        R("sh", "split" if s.single else "routed", "OUTPUT", dims="bjV"),
        R("labels", "fixed", dims=":0" if s.single else "bj:8"),
        R("lp", "log_softmax", "sh"),
        R("lf", "float" if s.precision == "amp" else "same", "lp"),
        R("LOSS", "nll_loss", "lf labels"),
        R("", "end", "sh lp labels"),
    )


#: Dimensions of torchtune's eight pieces of a sequence (`num_output_chunks`), first to last.
PIECES = "01234567"


def piece_logits(s: Structure) -> Table:
    """Logits of a sequence in pieces (`TransformerDecoder.chunked_output` in torchtune).

    A piece of several sequences is copied for its product; autocast has copied it already.
    """
    copied = not (s.single or s.precision == "amp")
    return (
        *(R(f"h{i}", "split", "Y", dims=f"b{i}h") for i in PIECES),
        *(
            row
            for i in PIECES
            for row in (
                *((R(f"c{i}", "copy", f"h{i}"),) if copied else ()),
                R(f"LOGITS{i}", "linear", f"c{i}" if copied else f"h{i}", "head", f"b{i}V"),
            )
        ),
        R("", "end", " ".join(f"h{i}" for i in PIECES)),
    )


def piece_losses(s: Structure) -> Table:
    """Cross entropy of fp32 copies of the pieces, summed (`CEWithChunkedOutputLoss`)."""
    return (
        R("pad", "fixed", dims="b:8"),
        R("labels", "fixed", "pad", dims="bs:8"),
        R("kept", "fixed", dims="bs:1"),
        R("count", "fixed", "kept", dims=":8"),
        *(
            R(f"l{i}", "same", "labels") if s.single else R(f"l{i}", "fixed", dims=f"b{i}:8")
            for i in PIECES
        ),
        R("", "end", "labels"),
        *(
            row
            for n, i in enumerate(PIECES)
            for row in (
                R(f"f{i}", "float", f"LOGITS{i}"),
                R(f"p{i}", "log_softmax", f"f{i}"),
                R(f"e{i}", "nll_loss", f"p{i} l{i}"),
                R("", "end", f"f{i}"),
                R(f"s{n}", "add", f"s{n - 1} e{i}") if n else R("s0", "add_constant", f"e{i}"),
            )
        ),
        R("LOSS", "scale", f"s{len(PIECES) - 1}"),
        R("", "end", "count"),
    )


def chunk(letter: str) -> Table:
    """Head and cross entropy of one chunk of tokens, `letter` of them."""
    return (
        R("lo", "linear", "H", "head", letter + "V"),
        R("lf", "float", "lo"),
        R("lp", "log_softmax", "lf"),
        R("LOSS", "nll_loss", "lp L"),
        R("", "end", "lf"),
    )
