"""Tables of the stacks other than transformers: fused kernels, parallel axes, experts.

One table, whose rows are chosen by the kernels and the axes. Its sums (bytes saved for the backward
pass, per token and layer) are those of published runs; h hidden, q and k query and key/value
widths, f FFN size, a heads, t tensor-parallel GPUs:

===================  =====================================================
torchtitan, eager    16h + 8q + 4a + 8f + 8: keys and values repeated
the same, selective  4h + 4q + 2k + 4a + 2f: outputs of every second product, attention, input
torch.compile        8h + 4q + 4k + 4a + 6f; selective 2h + 4q + 2k + 4a + 2f
Transformer Engine   (8h + 4q + 4k + 4a + 6f)/t, the 8h whole without sequence parallelism
Megatron, unfused    2as/t, and 3as/t with dropout, in place of 4a/t (Korthikanti et al. 2022, §4.1)
litgpt, frozen base  11h + 12q + 4a + 8f; GPT-NeoX 7h + 12q + 4a + 4f; QLoRA 8h + 2f more
llm.c                36h + 4a + 16
===================  =====================================================
"""

from __future__ import annotations

from trainmem.transformer.blocks import Table, flash, piece_logits, rms_norm
from trainmem.transformer.replay import Row as R
from trainmem.transformer.states import Structure

#: Rows whose outputs per-operation selective checkpointing keeps (torchtitan's list: attention and
#: every second matrix product); compiled, the last product's output is not needed.
SELECTED = {
    "torchtitan": frozenset({"qp", "vp", "a", "g", "u_only", "m"}),
    "compiled": frozenset({"qp", "vp", "a", "g", "u_only"}),
}


def selected(s: Structure) -> frozenset[str]:
    """Rows that a selective checkpoint keeps: of padded heads, attention's output as it came."""
    rows = SELECTED.get(s.kernels, frozenset())
    return rows - {"a"} | {"a.w"} if s.padded_heads and "a" in rows else rows


def layer(s: Structure) -> Table:
    """One layer, `X` in, `OUT` out."""
    if s.kernels == "llm.c":
        return llmc_layer()
    if s.family == "neox":
        return side_by_side(s)
    if s.family == "bert":
        return bert_layer()
    dropped = "masked" if s.dropout else "same"
    rows = (
        *norm(s, "X", "y0", "norm1"),
        *whole(s, "y0", "y"),
        *attend(s),
        *back(s, "a", "o", "o"),
        R("od", dropped, "o"),
        R("x1", "add", "X od"),
        *norm(s, "x1", "z0", "norm2"),
        *(experts(s) if s.experts else (*whole(s, "z0", "z"), *mlp(s))),
        R("md", dropped, "m"),
        R("OUT", "add", "x1 md"),
        *(R("", "end", name) for name in ("x1", "y", "z") if s.kernels == "litgpt"),
    )
    return with_adapters(s, rows)


def norm(s: Structure, x: str, out: str, weight: str) -> Table:
    """Norm: one kernel, or written out in fp32 (torchtitan to 2024, litgpt)."""
    if s.family in ("gpt", "gpt2", "neox"):
        return (R(out, "layer_norm", x, weight),)
    if s.kernels in ("torchtitan", "litgpt"):
        return rms_norm(x, out, weight, s.residual, s.residual[:-1])
    return (R(out, "rms_norm", x, weight, s.residual[:-1]),)


def whole(s: Structure, x: str, out: str) -> Table:
    """Gather a sequence that sequence parallelism divided; Transformer Engine's products do it."""
    if s.sp and s.kernels != "transformer_engine":
        return (R(out, "gather", x, dims="bsh"),)
    return (R(out, "same", x),)


def back(s: Structure, x: str, out: str, weight: str) -> Table:
    """Product back to the residual stream, divided again with sequence parallelism."""
    if s.kernels == "transformer_engine":
        return (R(out, "parallel_product", x, weight, s.residual),)
    if s.sp:
        return (R(out + "p", "linear", x, weight, "bsh"), R(out, "gather", out + "p", dims="brh"))
    return (R(out, "linear", x, weight, "bsh"),)


def product(s: Structure) -> str:
    """Name the operation of a product away from the residual stream."""
    return "parallel_product" if s.kernels == "transformer_engine" else "linear"


def attend(s: Structure) -> Table:
    """From the normalised `y` to the attention output `a`."""
    p = product(s)
    turn = "complex_rotary" if s.kernels == "torchtitan" else "rotary"
    rows = [
        R("qp", p, "y", "q", "bsq"),
        R("kp", p, "y", "k", "bsk"),
        R("vp", p, "y", "v", "bsk"),
    ]
    if s.qk_norm:
        for name, stat in (("q", "bsa"), ("k", "bsg")):
            one = norm_of_heads(s, name + "p", name + "n", name + "_norm", stat)
            rows += [*one, R(name + "r", turn, name + "n")]
    elif s.learned_positions:
        rows += [R("qr", "same", "qp"), R("kr", "same", "kp")]
    else:
        rows += [R("qr", turn, "qp"), R("kr", turn, "kp")]
    if s.attention == "eager":
        return (*rows, *unfused(s))
    kernel, k, v = "flash_grouped" if s.grouped else "flash", "kr", "vp"
    if s.grouped and s.kernels in ("torchtitan", "litgpt"):
        rows += [R("kk", "repeat", "kr", dims="bsq"), R("vv", "repeat", "vp", dims="bsq")]
        kernel, k, v = "flash", "kk", "vv"
    if s.kernels == "transformer_engine" and s.selective:
        kernel = "flash_recomputed"
    if s.ring:  # gathered or passed-on keys, values and partial results: seen, not explained
        rows += [R("qc", "kept", "qr", dims="bsq:2"), R("kc", "kept", k, dims="bsk:2")]
        rows += [R("a", kernel, f"qc kc {v}")]
    else:
        rows += [R("a", kernel, f"qr {k} {v}")]
    if s.kernels == "litgpt":  # concatenations around the rotary embedding and the adapters
        *_, last = rows
        rows[-1:] = [R("a0", kernel, last.ins), R("a", "kept", "a0", dims="bsq:4")]
    if s.kernels != "transformer_engine":  # the others call PyTorch's
        rows = [part for row in rows for part in flash(s, row)]
    return tuple(rows)


def unfused(s: Structure) -> Table:
    """Megatron's own attention (`DotProductAttention`): the scores are stored.

    Softmax is one kernel and saves its output, dropout a mask and its own; keys and values are
    repeated to all heads. Selective recomputation saves none of it.
    """
    k, v = ("kk", "vv") if s.grouped else ("kr", "vp")
    rows: Table = ()
    if s.grouped:
        rows = (R("kk", "repeat", "kr", dims="bsq"), R("vv", "repeat", "vp", dims="bsq"))
    if s.selective:
        how = "scores_recomputed_dropped" if s.dropout else "scores_recomputed"
        return (*rows, R("a", how, f"qr {k} {v}"))
    return (
        *rows,
        R("sc", "batched", f"qr {k}", dims="bass"),
        R("pr", "softmax", "sc"),
        R("at", "dropout" if s.dropout else "same", "pr"),
        R("ao", "batched", f"at {v}", dims="bsq"),
        R("a", "relayout", "ao"),
    )


def norm_of_heads(s: Structure, x: str, out: str, weight: str, stat: str) -> Table:
    """Qwen3's norm of queries or keys."""
    if s.kernels in ("torchtitan", "litgpt"):
        return rms_norm(x, out, weight, stat=stat)
    return (R(out, "rms_norm", x, weight, stat),)


def mlp(s: Structure) -> Table:
    """From the normalised `z` to `m`."""
    p = product(s)
    rows: Table
    if not s.gated:
        rows = (R("u_only", p, "z", "up", "bsf"), R("gu", "silu", "u_only"))
    else:
        rows = (R("g", p, "z", "gate", "bsf"), R("u", p, "z", "up", "bsf"))
        if s.kernels in ("torchtitan", "litgpt"):
            rows += (R("sg", "silu", "g"), R("gu", "multiply", "sg u"))
        else:
            rows += (R("gu", "gated", "g u"),)
    extra: tuple[str, ...] = ()
    if s.kernels == "litgpt" and s.adapted:  # measured: 2f more than the frozen products explain
        extra += ("bsf:2",)
        if s.quantization != "none":  # the unpacking products save inputs: 8h + 2f, measured
            extra += ("bsf:2", "bsh:8")
    name = "gu"
    for i, dims in enumerate(extra):
        rows += (R(f"gu{i}", "kept", name, dims=dims),)
        name = f"gu{i}"
    return (*rows, *back(s, name, "m", "down"))


def experts(s: Structure) -> Table:
    """Router, tokens in the order of their experts ("t" of them), grouped products, and back."""
    p = product(s)
    grouped = (
        R("g", p, "tz", "gate", "tf"),
        R("u", p, "tz", "up", "tf"),
        *(
            (R("sg", "silu", "g"), R("gu", "multiply", "sg u"))
            if s.kernels == "torchtitan"
            else (R("gu", "gated", "g u"),)
        ),
        R("tm", p, "gu", "down", "th"),
    )
    here = s.residual[:-1]  # routing works on the divided sequence
    return (
        R("rl", "linear", "z0", "router", here + "n"),
        R("rp", "float", "rl"),
        R("rs", "softmax", "rp"),
        R("pr", "chosen", "rs", dims="t"),
        R("tz", "routed", "z0", dims="th"),
        *grouped,
        R("tw", "weighted", "tm pr"),
        R("m", "routed", "tw", dims=s.residual),
    )


def side_by_side(s: Structure) -> Table:
    """GPT-NeoX's block: attention and MLP on the same input (Phi, StableLM-alpha, Pythia)."""
    rows = (
        R("y", "layer_norm", "X", "norm1"),
        R("z", "layer_norm", "X", "norm2"),
        *attend(s),
        *back(s, "a", "o", "o"),
        *mlp(s),
        R("x1", "add", "o m"),
        R("OUT", "add", "x1 X"),
    )
    return with_adapters(s, rows)


def bert_layer() -> Table:
    """BERT's layer with unfused attention, dropout and norms after the sums (transformers)."""
    return (
        R("q", "linear", "X", "q", "bsq"),
        R("k", "linear", "X", "k", "bsk"),
        R("v", "linear", "X", "v", "bsk"),
        R("sc", "batched", "q k", dims="bass"),
        R("sm", "scale", "sc"),
        R("mk", "add_constant", "sm"),
        R("pr", "softmax", "mk"),
        R("at", "dropout", "pr"),
        R("a", "batched", "at v", dims="bsq"),
        R("o", "linear", "a", "o", "bsh"),
        R("od", "dropout", "o"),
        R("r1", "add", "od X"),
        R("x1", "layer_norm", "r1", "norm1"),
        R("u", "linear", "x1", "up", "bsf"),
        R("gu", "silu", "u"),
        R("m", "linear", "gu", "down", "bsh"),
        R("md", "dropout", "m"),
        R("r2", "add", "md x1"),
        R("n2", "layer_norm", "r2", "norm2"),
        R("OUT", "lower", "n2"),
    )


def llmc_layer() -> Table:
    """llm.c keeps one buffer for all activations of a layer, and works in 10h more."""
    return (
        R("y0", "layer_norm", "X", "norm1"),
        R("y", "kept", "y0", dims="bsh:34"),  # and X
        R("z", "kept", "y", dims="bsa:4"),
        R("w", "kept", "z", dims="bs:8"),
        R("m", "routed", "w", dims="bsh"),
        R("OUT", "add", "X m"),
    )


def with_adapters(s: Structure, rows: Table) -> Table:
    """Give adapted products their adapters: two products of rank x, scaled and added (peft)."""
    out: list[R] = []
    dropped: dict[str, str] = {}
    for row in rows:
        if row.op not in ("linear", "conv1d") or row.weight not in s.adapted:
            out.append(row)
            continue
        p, w = row.out + ".", row.weight
        x = row.ins
        if s.kernels == "litgpt":  # its recipes drop 5 %, once for all that share an input
            if x not in dropped:
                dropped[x] = p + "d"
                out.append(R(p + "d", "dropout", x))
            x = dropped[x]
        out += [
            R(p + "base", row.op, row.ins, w, row.dims),
            R(p + "c", "widen", x),
            R(p + "a", "linear", p + "c", w + ".lora_A", row.dims[:-1] + "x"),
            R(p + "b", "linear", p + "a", w + ".lora_B", row.dims),
            R(p + "s", "scale", p + "b"),
            R(p + "t", "add", f"{p}base {p}s"),
            R(row.out, "like", f"{p}t {p}base"),
        ]
        if s.kernels in ("transformers", "liger"):  # peft's variable, and the caller's argument
            out.append(R("", "end", f"{p}c {x}"))
    return tuple(out)


def embedding(s: Structure) -> Table:
    """From token ids, or the stage before, to the first layer's input `X`."""
    if not s.first:
        return (R("X", "receive", dims=s.residual),)
    if s.family == "bert":
        return (
            R("TOKENS", "embedding", "", "embed", "bsh"),
            R("IDS", "fixed", dims="s:8"),
            R("KINDS", "fixed", dims="s:8"),
            R("TYPES", "embedding", "KINDS", "token_type", "bsh"),
            R("typed", "add", "TOKENS TYPES"),
            R("PLACES", "embedding", "IDS", "position", "sh"),
            R("sum", "add", "typed PLACES"),
            R("normed", "layer_norm", "sum", "embed_norm"),
            R("dropped", "dropout", "normed"),
            R("X", "lower", "dropped"),
        )
    if s.learned_positions and s.kernels != "llm.c":  # which adds them as it looks up
        rows: Table = (
            R("TOKENS", "embedding", "", "embed", "bsh"),
            R("IDS", "fixed", dims="bs:8"),
            R("PLACES", "embedding", "IDS", "position", "bsh"),
            R("X" if not s.sp else "x0", "add", "TOKENS PLACES"),
        )
    else:
        rows = (R("X" if not s.sp else "x0", "embedding", "", "embed", "bsh"),)
    if s.sp:
        rows += (R("X", "gather", "x0", dims="brh"),)
    return rows


def final_norm(s: Structure) -> Table:
    """Norm in front of the head; BERT has a pooler."""
    if s.family == "bert":
        return (
            R("first", "routed", "X", dims="bh"),
            R("pooled", "linear", "first", "pooler", "bh"),
            R("Y", "tanh", "pooled"),
        )
    return norm(s, "X", "Y", "norm")


def logits(s: Structure) -> Table:
    """Logits in the type of the weights."""
    rows: Table
    if s.pieces:
        return with_adapters(s, piece_logits(s))
    if s.family == "bert":  # two classes a sequence
        return (R("kept", "dropout", "Y"), R("LOGITS", "linear", "kept", "classifier", "by"))
    if s.kernels == "transformer_engine":
        rows = (R("LOGITS", "parallel_product", "Y", "head", "bsV"),)
    elif s.sp:
        rows = (R("Yg", "gather", "Y", dims="bsh"), R("LOGITS", "linear", "Yg", "head", "bsV"))
    else:
        rows = (R("LOGITS", "linear", "Y", "head", "bsV"),)
    return with_adapters(s, rows)


#: One-kernel losses by the plan's name.
LOSSES: dict[str, Table] = {
    "compiled": (R("LOSS", "loss_compiled", "LOGITS"),),
    "pieces": (R("LOSS", "loss_pieces", "LOGITS"),),
    "parallel": (R("LOSS", "loss_by_vocabulary", "LOGITS"),),
    "in_place": (R("LOSS", "loss_in_place", "LOGITS"),),
}
