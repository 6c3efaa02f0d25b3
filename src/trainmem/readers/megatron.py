"""Megatron-LM's argument list.

Arguments and defaults: Megatron-LM `megatron/training/arguments.py` (commit d98e8a64) and the
dataclasses from which it builds arguments (`TransformerConfig`, `ModelParallelConfig`,
`TrainingConfig`, `TokenizerConfig`, …); `torchrun`'s for the number of GPUs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from trainmem.config import ConfigError
from trainmem.readers.account import Account, Reading
from trainmem.readers.megatron_keys import IGNORED, UNSUPPORTED
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.options import OPTIONS

_GEOMETRY_KEYS = """
--num-layers --hidden-size --num-attention-heads --ffn-hidden-size --num-query-groups
--kv-channels --vocab-size --padded-vocab-size --max-position-embeddings --num-experts
--moe-router-topk --moe-ffn-hidden-size --swiglu --untie-embeddings-and-output-weights
--group-query-attention --qk-layernorm --add-qkv-bias --disable-bias-linear
"""
_KINDS = (
    "--normalization",
    "--position-embedding-type",
    "--use-rotary-position-embeddings",
    "--make-vocab-size-divisible-by",
)
_GEOMETRY = tuple(_GEOMETRY_KEYS.split())


def read_megatron(
    arguments: Sequence[str], *, vocab_size: int | None = None, **given: Any
) -> Reading:
    """Read Megatron-LM's arguments, with or without the launcher before them.

    Parameters
    ----------
    arguments
        The words of the command line; up to a word that ends in `.py` they are `torchrun`'s.
    vocab_size
        Entries of the tokenizer's vocabulary, where `--vocab-size` is not among the arguments.
    **given
        Options of the plan (`num_gpus`).

    Raises
    ------
    ConfigError
        Naming an argument, its bad value and what is allowed.
    ValueError
        For a combination that the plan does not cover.
    """
    account = Account(parse(arguments), given)
    account.assume("Megatron", framework="megatron", kernels="transformer_engine",
                  sequence_parallel=False)  # fmt: skip
    _axes(account)
    _batches(account)
    _states(account)
    _activations(account)
    model = _architecture(account, vocab_size)
    account.rest(IGNORED, UNSUPPORTED)
    return account.close("megatron", model)


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return arguments by name: True for a flag, a string for one value, a list for more.

    The last of repeated arguments counts, as in `argparse`.

    Raises
    ------
    ConfigError
        For words that belong to no argument.
    """
    for word in words:
        if not isinstance(word, str):
            raise ConfigError("arguments", word, "must be strings")
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), -1)
    found: dict[str, list[str]] = {}
    name = ""
    for i, word in enumerate(words):
        if i == script or (i < script and not word.startswith("-") and not name):
            name = ""  # the script, or `torchrun` and `python -m …` before it
        elif re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
        else:
            raise ConfigError("arguments", word, "must begin with an --argument")
    return {
        name: True if not values else values[0] if len(values) == 1 else values
        for name, values in found.items()
    }


def _axes(account: Account) -> None:
    account.refuse("--model-parallel-size", why="old: use --tensor-model-parallel-size")
    axes = {"--tensor-model-parallel-size": "tp", "--pipeline-model-parallel-size": "pp",
            "--context-parallel-size": "cp", "--expert-model-parallel-size": "ep"}  # fmt: skip
    for key, axis in axes.items():
        size = account.integer(key, 1, OPTIONS[axis].bounds[1])
        if size is not None:
            account.use(key, **{axis: size})
    if account.flag("--sequence-parallel"):
        account.use("--sequence-parallel", sequence_parallel=True)
    if account.integer("--expert-tensor-parallel-size") == account.value("tp"):
        account.ignore("--expert-tensor-parallel-size", why="as the rest")
    per_node = [k for k in ("--nproc_per_node", "--nproc-per-node") if account.get(k) is not None]
    local = account.integer(per_node[0], 1, 1024) if per_node else None
    nodes = account.integer("--nnodes", 1, 1_000_000)
    if local is not None:
        account.count_gpus(local * (nodes or 1), *per_node, "--nnodes")
    account.count_gpus()
    account.ignore("--nnodes", why="without --nproc-per-node")
    _chunks(account)


def _chunks(account: Account) -> None:
    """Account for the interleaved pipeline."""
    layers, per_chunk = "--num-layers", "--num-layers-per-virtual-pipeline-stage"
    stages = "--num-virtual-stages-per-pipeline-rank"
    chunks = account.integer(stages)
    each = account.integer(per_chunk)
    if each is not None:
        total = account.integer(layers)
        whole = each * account.value("pp")
        if total is None or (total % whole and (total + 2) % whole):
            raise ConfigError(
                per_chunk, each, f"must divide {layers} ({total}) over {account.value('pp')} stages"
            )
        chunks = (total if total % whole == 0 else total + 2) // whole
    if chunks is not None:
        account.use(stages, per_chunk, vpp=chunks)
    flags = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
    if all(account.flag(flag) for flag in flags):
        account.note(*flags, text="embedding and head count as a layer where layers don't divide")
    account.refuse(*flags, why="embedding and head count together or not at all")


def _batches(account: Account) -> None:
    account.assume("the arguments lack --micro-batch-size", micro_batch=1)
    account.assume("the arguments lack --seq-length", seq_length=4096)
    micro = account.integer("--micro-batch-size", 1, 65_536)
    if micro is not None:
        account.use("--micro-batch-size", micro_batch=micro)
    length = account.integer("--seq-length", 1, 2**24)
    if length is not None:
        account.use("--seq-length", seq_length=length)
    total = account.integer("--global-batch-size")
    replicas = account.value("num_gpus") // (
        account.value("tp") * account.value("pp") * account.value("cp")
    )
    if total is not None and replicas:
        step = account.value("micro_batch") * replicas
        if total % step and "num_gpus" not in account.assumed:
            raise ConfigError(
                "--global-batch-size",
                total,
                f"must be a multiple of micro batch × data-parallel ranks = {step}",
            )
        account.use("--global-batch-size", accumulation=max(1, total // step))


def _states(account: Account) -> None:
    half = [key for key in ("--bf16", "--fp16") if account.flag(key)]
    if not half:
        raise ConfigError("--bf16", None, "must be there, or --fp16: fp32 is not covered")
    account.use(*half, precision="bf16_master")
    account.note("--accumulate-allreduce-grads-in-fp32", text="gradients in fp32")
    sharded = account.flag("--use-distributed-optimizer") or any(
        account.flag(key)
        for key in ("--use-megatron-fsdp", "--use-custom-fsdp", "--use-torch-fsdp2")
    )
    sharding = "zero1" if sharded else account.replicated()
    account.assume("no --use-distributed-optimizer", sharding=sharding)
    account.use("--use-distributed-optimizer", sharding=sharding)
    name = str(account.get("--optimizer", "adam")).lower()
    if name == "adam":
        account.use("--optimizer", optimizer="adamw")
    account.refuse("--optimizer", why="modelled as Adam")
    if account.flag("--optimizer-cpu-offload"):
        account.wish("--optimizer-cpu-offload", offload="optimizer")
    account.note("--optimizer-offload-fraction", text="see --optimizer-cpu-offload")


def _activations(account: Account) -> None:
    kinds = ("full", "selective")
    kind = account.choice("--recompute-granularity", kinds)
    if kind is None and account.flag("--recompute-activations"):
        kind = "selective"
    account.assume("no recomputation is asked for", checkpointing="none")
    if kind is not None:
        keys = ("--recompute-granularity", "--recompute-activations")
        account.use(*keys, checkpointing=kind)
    method = account.choice("--recompute-method", ("uniform", "block"))
    layers = account.integer("--recompute-num-layers")
    keys = ("--recompute-method", "--recompute-num-layers")
    if kind != "full":
        account.ignore(*keys, why="only for full recomputation")
    elif method == "block":
        total = math.ceil((account.integer("--num-layers") or 1) / account.value("pp"))
        if layers is not None and layers < total:
            account.refuse(*keys, why="modelled as recomputing every layer")
    elif layers is not None and layers > 1:
        account.refuse(*keys, why="modelled as keeping every layer's input")
    account.note(*keys, text="every layer's input is kept, every layer recomputed")
    modules = account.get("--recompute-modules", ["core_attn"])
    if modules in ("core_attn", ["core_attn"]) or kind != "selective":
        account.ignore("--recompute-modules", why="as Megatron does by default, or not used")
    account.refuse("--recompute-modules", why="modelled as recomputing attention's core")
    if account.flag("--cross-entropy-loss-fusion"):
        keys = ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl")
        account.use(*keys, loss_head="in_place")
    account.ignore("--cross-entropy-fusion-impl", why="only with --cross-entropy-loss-fusion")
    _attention(account)
    _dropout(account)


def _dropout(account: Account) -> None:
    """Account for dropout, which is on unless the arguments say otherwise."""
    rates = {}
    for key in ("--hidden-dropout", "--attention-dropout"):
        rates[key] = _number(key, account.get(key, 0.1))
    hidden, attention = rates
    account.assume(f"{hidden} is not among the arguments: 0.1", dropout=True)
    if account.value("attention") == "flash":
        account.use(hidden, dropout=rates[hidden] > 0)
        why = "flash attention keeps no mask" if rates[attention] else "no dropout"
        account.ignore(attention, why=why)
        return
    both = "modelled as dropping both activations and attention's weights"
    if (rates[hidden] > 0) != (rates[attention] > 0):
        account.miss(attention, both)
    account.use(hidden, attention, dropout=rates[hidden] > 0 or rates[attention] > 0)


#: Arguments that pick the kernel of attention.
_ATTENTION = "--attention-backend", "--use-flash-attn", "--transformer-impl", "--use-mcore-models"


def _attention(account: Account) -> None:
    """Account for the kernel of attention: flash, or Megatron's own, which stores the scores."""
    unfused = _unfused(account)
    if "attention" in account.given:
        account.ignore(*_ATTENTION, why=f"overridden by attention={account.given['attention']!r}")
    elif unfused is not None:
        key, cause = unfused
        account.assume(f"{key} {cause}: attention's scores are stored", attention="eager")
        account.use(key, attention="eager")
        account.refuse(
            "--attention-softmax-in-fp32",
            "--no-masked-softmax-fusion",
            why="the softmax of stored scores is modelled as one kernel in 16 bits",
        )
    account.note(*_ATTENTION, "--use-legacy-models", "--flash-attention-version",
                text="the kernel of attention")  # fmt: skip


def _unfused(account: Account) -> tuple[str, str] | None:
    """Return the argument by which attention stores its scores, and how; None where flash runs.

    Transformer Engine's kernels store none. Megatron-Core's own do; those before it did unless
    a flag asked for flash attention, and were the default until 2024. Context parallelism is
    Transformer Engine's alone.
    """
    backend, flash, layers, core = _ATTENTION
    backends = ("flash", "fused", "auto", "unfused", "local")
    kernel = str(account.get(backend, "")).lower()
    if kernel not in ("", *backends):
        raise ConfigError(backend, kernel, f"must be one of {', '.join(backends)}")
    whose = account.choice(layers, ("local", "transformer_engine", "inference_optimized"))
    asked, new = bool(account.flag(flash)), bool(account.flag(core))
    if kernel in ("unfused", "local"):
        return backend, kernel
    if whose == "local" and (new or not asked):
        return layers, whose
    if not (kernel or whose or new or asked or account.value("cp") > 1):
        return flash, "not among the arguments (give attention='flash' for Transformer Engine)"
    return None


def _number(key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < 1:
        raise ConfigError(key, value, "must be a number from 0 to below 1")
    return number


def _architecture(account: Account, vocab_size: int | None) -> Architecture | None:
    """Account for the geometry; return the architecture if it is whole."""
    sizes = {key: account.integer(key) for key in _GEOMETRY[:12]}
    flags = {key: bool(account.flag(key)) for key in _GEOMETRY[12:]}
    layers, hidden, heads = (sizes[key] for key in _GEOMETRY[:3])
    vocabulary = sizes["--padded-vocab-size"] or sizes["--vocab-size"] or vocab_size
    missing = [
        key
        for key, value in zip(
            (*_GEOMETRY[:3], "--vocab-size"), (layers, hidden, heads, vocabulary), strict=True
        )
        if value is None
    ]
    if layers is None or hidden is None or heads is None or vocabulary is None:
        account.refuse(*_GEOMETRY, why=f"no architecture without {', '.join(missing)}")
        return None
    family, kinds = _family(account, flags, bool(sizes["--num-experts"]))
    if not family:
        account.refuse(*_GEOMETRY, why="no family has this norm, gate, positions and biases")
        return None
    if sizes["--padded-vocab-size"] is None:
        unit = (account.integer("--make-vocab-size-divisible-by") or 128) * account.value("tp")
        vocabulary = math.ceil(vocabulary / unit) * unit
    grouped = flags["--group-query-attention"] and sizes["--num-query-groups"]
    gate = flags["--swiglu"]
    ffn = sizes["--ffn-hidden-size"] or (int(4 * hidden * 2 / 3) // 64 * 64 if gate else 4 * hidden)
    experts: dict[str, Any] = {}
    if sizes["--num-experts"]:
        ffn = sizes["--moe-ffn-hidden-size"] or ffn
        experts = {
            "num_experts": sizes["--num-experts"],
            "experts_per_token": sizes["--moe-router-topk"] or 2,
        }
    try:
        model = Architecture(
            name=f"Megatron {layers} × {hidden}",
            family=family,
            num_layers=layers,
            hidden_dim=hidden,
            num_heads=heads,
            num_kv_heads=grouped or heads,
            head_dim=sizes["--kv-channels"] or hidden // heads,
            ffn_dim=ffn,
            vocab_size=vocabulary,
            tie_embeddings=not flags["--untie-embeddings-and-output-weights"],
            max_positions=sizes["--max-position-embeddings"] or account.value("seq_length"),
            source="Megatron's arguments",
            **experts,
            **kinds,
        )
    except ValueError as error:
        raise ValueError(f"Megatron's arguments: {error}") from None
    account.note(*_GEOMETRY, *_KINDS, text=f"the architecture, family {family}")
    return model


def _family(account: Account, flags: dict[str, bool], experts: bool) -> tuple[str, dict[str, bool]]:
    """Return the family whose tensors these arguments make, and its own fields; "" for none."""
    rms = str(account.get("--normalization", "LayerNorm")) == "RMSNorm"
    positions = str(account.get("--position-embedding-type", "learned_absolute"))
    rope = positions in ("rope", "yarn") or bool(account.flag("--use-rotary-position-embeddings"))
    if rms and rope and flags["--swiglu"] and flags["--disable-bias-linear"]:
        if experts:
            return "qwen3_moe" if flags["--qk-layernorm"] else "mixtral", {}
        if flags["--add-qkv-bias"]:
            return "qwen2", {}
        return "qwen3" if flags["--qk-layernorm"] else "llama", {}
    if rms or experts or flags["--qk-layernorm"] or flags["--add-qkv-bias"]:
        return "", {}
    if not rope and positions != "learned_absolute":
        return "", {}
    return "gpt", {
        "gate": flags["--swiglu"],
        "linear_bias": not flags["--disable-bias-linear"],
        "learned_positions": not rope,
    }
