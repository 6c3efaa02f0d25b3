"""Every rule of validity of a plan: which options go together.

One table (`model_rules` has those of a model and a plan), read by plans as they are made and by the
widget, which switches off what cannot be had and brings along what a choice needs. What belongs to
one framework stands in its own file, and is asked at its place here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from trainmem.transformer.optimizers import OPTIMIZERS
from trainmem.transformer.rule import NotCovered, Rule
from trainmem.transformer.stacks import FRAMEWORKS, KERNELS, Framework, Kernels

if TYPE_CHECKING:
    from trainmem.transformer.plan import Plan

_ZERO = ("zero1", "zero2", "zero3")


def _framework(p: Plan) -> Framework:
    return FRAMEWORKS[p.framework]


def _kernels(p: Plan) -> Kernels:
    return KERNELS[p.kernels]


def _names(has: Callable[[Kernels], bool]) -> tuple[str, ...]:
    """Return the names of the kernels that have something."""
    return tuple(name for name, kernels in KERNELS.items() if has(kernels))


def _those(has: Callable[[Kernels], bool]) -> str:
    """Name the kernels that have something: ``'a', 'b' or 'c'``."""
    *most, last = map(repr, _names(has))
    return f"{', '.join(most)} or {last}" if most else last


def _multiple(p: Plan) -> str:
    multiple = p.gpu_multiple
    below = p.num_gpus // multiple * multiple
    near = f"{below} or {below + multiple}" if below else f"{multiple}"
    ep = f", ep {p.ep}" if p.ep > 1 else ""
    return (
        f"num_gpus {p.num_gpus} is not a multiple of {multiple} "
        f"(tp {p.tp} · pp {p.pp} · cp {p.cp}{ep}); the nearest are {near}"
    )


def _no_replicas(p: Plan) -> str:
    each = f" for every tp · pp = {p.tp * p.pp}" if p.tp * p.pp > 1 else ""
    return f"sharding 'ddp' needs num_gpus of 2 or more{each}, got {p.num_gpus}; use 'none'"


def _no_setting(p: Plan) -> str:
    own = _framework(p).settings
    bad = next(name for name, _ in p.settings if name not in own)
    has = f"; it has {', '.join(own)}" if own else ""
    return f"settings of framework {p.framework!r} have no {bad!r}{has}"


def _partners(p: Plan) -> tuple[str, str] | None:
    """Return a framework and kernels that run only with each other, of which a plan has one."""
    for framework in FRAMEWORKS.values():
        own = framework.kernels
        if own and (p.framework == framework.name) != (p.kernels == own):
            return framework.name, own
    return None


def _apart(p: Plan) -> str:
    framework, kernels = _partners(p) or ("", "")
    return (
        f"framework {p.framework!r} does not go with kernels {p.kernels!r}: "
        f"{framework!r} and {kernels!r} go together"
    )


def _without_adapters(p: Plan) -> bool:
    framework = _framework(p)
    master = p.precision == "bf16_master" and not framework.adapters_with_master
    return bool(p.lora_rank) and (master or not framework.adapters or p.tp * p.pp > 1)


def _parallel(axis: str, words: str) -> Rule:
    return Rule(
        name=f"kernels with {words} parallelism",
        fields=(axis, "kernels"),
        broken=lambda p: getattr(p, axis) > 1 and not _kernels(p).parallel,
        message=lambda p: (
            f"{axis} {getattr(p, axis)} needs kernels {_those(lambda k: k.parallel)}, "
            f"got {p.kernels!r}"
        ),
        grants={"kernels": _names(lambda k: k.parallel)},
    )


LAYOUT = (
    Rule(
        name="GPUs are a multiple of the axes",
        fields=("num_gpus", "tp", "pp", "cp", "ep"),
        broken=lambda p: p.num_gpus % p.gpu_multiple != 0,
        message=_multiple,
    ),
    Rule(
        name="an interleaved pipeline is a pipeline",
        fields=("vpp", "pp"),
        broken=lambda p: p.vpp > 1 and p.pp == 1,
        message=lambda p: f"vpp {p.vpp} needs pp of 2 or more, got 1",
    ),
    Rule(
        name="an interleaved pipeline takes micro batches in rounds",
        fields=("accumulation", "pp"),
        broken=lambda p: p.vpp > 1 and p.accumulation % p.pp != 0,
        message=lambda p: (
            f"accumulation {p.accumulation} is not a multiple of pp {p.pp}, as an interleaved "
            f"pipeline needs; the nearest is {max(1, round(p.accumulation / p.pp)) * p.pp}"
        ),
    ),
)

SHARDING = (
    Rule(
        name="several GPUs share or replicate",
        fields=("sharding", "num_gpus"),
        broken=lambda p: p.sharding == "none" and p.ranks > 1,
        message=lambda p: (
            f"sharding 'none' is for one GPU, got num_gpus {p.num_gpus}; "
            "use 'ddp' or 'zero1' to 'zero3'"
        ),
        grants={"sharding": ("ddp", "zero1", "zero3")},
    ),
    Rule(
        name="one GPU has no replicas",
        fields=("sharding", "num_gpus"),
        broken=lambda p: p.sharding == "ddp" and p.ranks == 1,
        message=_no_replicas,
        grants={"sharding": ("none",)},
    ),
    Rule(
        name="mixed precision is FSDP2's",
        fields=("precision", "framework", "sharding"),
        broken=lambda p: p.precision == "mixed" and not p.fsdp,
        message=lambda p: (
            "precision 'mixed' is FSDP2's and needs framework 'torch' with sharding 'zero1', "
            f"'zero2' or 'zero3'; with framework {p.framework!r}, sharding {p.sharding!r} use "
            "'amp' or 'bf16_master'"
        ),
        grants={
            "precision": ("amp", "bf16_master"),
            "framework": tuple(f.name for f in FRAMEWORKS.values() if f.fsdp2),
            "sharding": _ZERO,
        },
    ),
    Rule(
        name="groups apart are FSDP2's",
        fields=("wrapping", "sharding"),
        broken=lambda p: p.wrapping == "split" and not p.fsdp,
        message=lambda p: (
            f"wrapping 'split' needs sharding 'zero1', 'zero2' or 'zero3', got {p.sharding!r}"
        ),
        grants={"sharding": _ZERO},
    ),
    Rule(
        name="the type of the reduction is mixed precision's",
        fields=("reduce_dtype", "precision"),
        broken=lambda p: p.reduce_dtype != "float32" and p.precision != "mixed",
        message=lambda p: (
            f"reduce_dtype {p.reduce_dtype!r} needs precision 'mixed', got {p.precision!r}"
        ),
        grants={"precision": ("mixed",)},
    ),
    Rule(
        name="settings that the framework has",
        fields=("settings", "framework"),
        broken=lambda p: any(name not in _framework(p).settings for name, _ in p.settings),
        message=_no_setting,
        grants={"settings": ((),)},
    ),
    Rule(
        name="master weights are the optimizer's",
        fields=("precision", "optimizer"),
        broken=lambda p: (
            p.precision == "bf16_master"
            and not (OPTIMIZERS[p.optimizer].masters or _framework(p).own_masters)
        ),
        message=lambda p: f"precision 'bf16_master' needs optimizer 'adamw', got {p.optimizer!r}",
        grants={"optimizer": ("adamw",)},
    ),
    Rule(
        name="only ranks can leave out a reduction",
        fields=("no_sync", "sharding"),
        broken=lambda p: p.no_sync and p.sharding == "none",
        message=lambda p: "no_sync needs more than one rank: sharding 'ddp' or 'zero1' to 'zero3'",
        grants={"sharding": ("ddp", "zero1", "zero3")},
    ),
    Rule(
        name="states that can be sharded",
        fields=("optimizer", "sharding"),
        broken=lambda p: p.zero_stage > 0 and not OPTIMIZERS[p.optimizer].shards,
        message=lambda p: (
            f"optimizer {p.optimizer!r} is not covered with sharding 'zero1' to 'zero3'; "
            "use 'none' or 'ddp'"
        ),
        grants={"sharding": ("none", "ddp")},
    ),
    Rule(
        name="the framework's precision",
        fields=("framework", "precision"),
        broken=lambda p: bool(_framework(p).precision) and p.precision != _framework(p).precision,
        message=lambda p: (
            f"framework {p.framework!r} needs precision {_framework(p).precision!r}, "
            f"got {p.precision!r}"
        ),
        grants={"precision": ("bf16_master",)},
    ),
)

STACK = (
    Rule(
        name="frameworks and kernels that go together",
        fields=("framework", "kernels"),
        broken=lambda p: _partners(p) is not None,
        message=_apart,
        grants={
            "framework": tuple(f.name for f in FRAMEWORKS.values() if f.kernels),
            "kernels": tuple(f.kernels for f in FRAMEWORKS.values() if f.kernels),
        },
    ),
    Rule(
        name="kernels that keep keys and values",
        fields=("use_cache", "kernels"),
        broken=lambda p: p.use_cache and not _kernels(p).caches,
        message=lambda p: (
            f"use_cache is covered with kernels {_those(lambda k: k.caches)}, got {p.kernels!r}"
        ),
        grants={"kernels": _names(lambda k: k.caches)},
    ),
    _parallel("tp", "tensor"),
    _parallel("pp", "pipeline"),
    Rule(
        name="the kernels' attention",
        fields=("kernels", "attention"),
        broken=lambda p: p.attention not in _kernels(p).attentions,
        message=lambda p: f"kernels {p.kernels!r} need attention 'flash', got {p.attention!r}",
        grants={"attention": ("flash",)},
    ),
    Rule(
        name="context parallelism has flash attention",
        fields=("cp", "attention"),
        broken=lambda p: p.cp > 1 and p.attention != "flash",
        message=lambda p: f"cp {p.cp} needs attention 'flash', got {p.attention!r}",
        grants={"attention": ("flash",)},
    ),
    Rule(
        name="the kernels' types",
        fields=("kernels", "precision"),
        broken=lambda p: p.precision not in _kernels(p).precisions,
        message=lambda p: (
            f"kernels {p.kernels!r} need precision 'mixed', 'bf16_master' or 'bf16', "
            f"got {p.precision!r}"
        ),
        grants={"precision": ("mixed", "bf16_master", "bf16")},
    ),
    Rule(
        name="kernels with selective checkpointing",
        fields=("checkpointing", "kernels"),
        broken=lambda p: p.checkpointing == "selective" and not _kernels(p).selective,
        message=lambda p: (
            f"checkpointing 'selective' needs kernels {_those(lambda k: k.selective)}, "
            f"got {p.kernels!r}"
        ),
        grants={"kernels": _names(lambda k: k.selective)},
    ),
    Rule(
        name="losses that see the whole vocabulary",
        fields=("loss_head",),
        broken=lambda p: (
            p.loss_head in ("chunked", "fused") and (p.tp > 1 or _framework(p).own_loss)
        ),
        message=lambda p: (
            f"loss_head {p.loss_head!r} is not covered with tensor parallelism or Megatron; "
            "use 'in_place', 'compiled' or 'transformers'"
        ),
        grants={"loss_head": ("in_place", "compiled", "transformers")},
    ),
    Rule(
        name="gradients of a pipeline",
        fields=("no_sync", "keep_gradients", "pp"),
        broken=lambda p: p.pp > 1 and (p.no_sync or p.keep_gradients),
        message=lambda p: "no_sync and keep_gradients are not covered with pp above 1",
    ),
    Rule(
        name="a quantised base has adapters",
        fields=("quantization", "lora_rank"),
        broken=lambda p: p.quantization != "none" and not p.lora_rank,
        message=lambda p: f"quantization {p.quantization!r} needs lora_rank of 1 or more, got 0",
    ),
    Rule(
        name="where adapters are covered",
        fields=("lora_rank", "framework", "precision", "tp", "pp"),
        broken=_without_adapters,
        message=lambda p: (
            "lora_rank above 0 is covered with framework 'torch' or 'deepspeed', precision other "
            "than 'bf16_master' in the first, tp 1 and pp 1; got framework "
            f"{p.framework!r}, precision {p.precision!r}, tp {p.tp}, pp {p.pp}"
        ),
        grants={
            "framework": tuple(f.name for f in FRAMEWORKS.values() if f.adapters),
            "precision": ("bf16_master",),
        },
    ),
    Rule(
        name="types of a quantised base",
        fields=("quantization", "precision"),
        broken=lambda p: p.quantization != "none" and p.precision in ("mixed", "fp32"),
        message=lambda p: (
            f"quantization {p.quantization!r} needs precision 'bf16' or 'amp', got {p.precision!r}"
        ),
        grants={"precision": ("bf16", "amp")},
    ),
    Rule(
        name="losses under an adapted head",
        fields=("lora_targets", "loss_head"),
        broken=lambda p: p.lora_targets == "all_head" and p.loss_head in ("chunked", "fused"),
        message=lambda p: f"lora_targets 'all_head' is not covered with loss_head {p.loss_head!r}",
    ),
    Rule(
        name="states in CPU memory",
        fields=("offload", "framework"),
        broken=lambda p: p.offload != "none" and not _framework(p).offloads,
        message=lambda p: f"offload {p.offload!r} is not covered with framework {p.framework!r}",
    ),
)


def rules_of(plan: Plan) -> Iterator[Rule]:
    """Return the rules that a plan keeps, in the order in which they are asked."""
    return chain(LAYOUT, SHARDING, FRAMEWORKS[plan.framework].rules, STACK)


def broken_by(plan: Plan) -> Rule | None:
    """Return the first rule that a plan breaks; None where it breaks none."""
    return next((rule for rule in rules_of(plan) if rule.broken(plan)), None)


def check_options(plan: Plan) -> None:
    """Refuse options that do not go together.

    Raises
    ------
    NotCovered
        With the message of the first rule broken, and the field it names.
    """
    rule = broken_by(plan)
    if rule is not None:
        raise NotCovered(rule.message(plan), rule.fields[0])
