"""What the widget shows of a simulation, in words: plain data for a front end that only paints.

Keeping the sentences here keeps them testable without a browser and the front end small.
"""

from __future__ import annotations

from typing import Any, Final

from trainmem.cards import PRESETS
from trainmem.config import FIELDS
from trainmem.limits import Limit
from trainmem.request import CONTROLS, DERIVED, stack_of, stacks_lacking
from trainmem.simulation import GB, Simulation
from trainmem.transformer import ARCHITECTURES, Architecture, Plan
from trainmem.transformer.inputs import plan_of
from trainmem.transformer.peak_case import layout_words
from trainmem.widget.calls import curl_command, python_call
from trainmem.widget.labels import choice_labels, in_labels
from trainmem.words import grouped, write_capacity, write_gb

__all__ = ["panel"]

HEADLINES: Final = {
    "fits": "✓ Fits",
    "uncertain": "≈ May not fit",
    "does not fit": "✗ Out of memory",
}

OFFERS: Final = {"fits": "Fits with", "uncertain": "May fit with"}
"""What stands before the changes that end in a grade."""

MOST_FIXES: Final = 6
"""Changes shown, the gentlest; `fixes()` has them all."""

OMITS: Final = (
    "This model leaves out the loss head, gathered parameters, kernels' temporaries and CUDA's "
    "own memory: real steps nearly always need more."
)
OFFER: Final = "Choose an architecture to count them"


def panel(simulation: Simulation) -> dict[str, Any]:
    """Return all that the widget shows of a simulation, as JSON-serialisable data."""
    s, name = simulation, simulation.architecture.name if simulation.architecture else ""
    return {
        "architecture": name,
        "grade": s.grade,
        "dominates": _dominates(s),
        "preset": _preset_of(s),
        "stack": stack_of(s.plan) if s.plan is not None else "",
        "plan": {n: getattr(s.plan, n) for n in CONTROLS} if s.plan is not None else {},
        "unavailable": _unavailable(s),
        "layout": layout_words(s.plan) if s.plan is not None else "",
        "note": {"text": "", "offer": ""} if name else {"text": OMITS, "offer": OFFER},
        "summary": _summary(s.plan) if s.plan is not None else "",
        "idle": _idle(s.plan, s.architecture) if s.plan and s.architecture else [],
        "detail": _detail(s),
        "fits": s.fits,
        "headline": HEADLINES[s.grade],
        "banner": s.banner.replace(" %", "\N{NO-BREAK SPACE}%"),
        "fixes": _fixes(s),
        "cards": _cards(s),
        "footer": (
            f"{s.bytes_per_param:.3g} bytes/param{_whole(s)} · "
            f"global batch {grouped(s.global_batch)} · "
            f"cluster {write_gb(s.aggregate_cluster_gb)} GB · "
            f"computed here in {s.compute_ms:.1f} ms"
        ),
        "table": _table(s),
        "python": python_call(s.config, s.model),
        "curl": "" if name else curl_command(s.config),  # the HTTP API has no architectures
    }


def _fixes(s: Simulation) -> list[dict[str, Any]]:
    """Return the changes on offer by the grade that they end in: words, and a button each."""
    shown = s.fixes()[:MOST_FIXES]
    groups = []
    for grade, offer in OFFERS.items():
        items = [
            {"label": f"{fix.label} → {write_gb(fix.per_gpu_total_gb)} GB", "changes": fix.changes}
            for fix in shown
            if fix.grade == grade
        ]
        if items:
            groups.append({"offer": offer, "items": items})
    return groups


def _unavailable(s: Simulation) -> dict[str, dict[str, str]]:
    """Return why inputs, or choices of them, can't be had in the present state; "" stands for all.

    What another option of the plan needs is brought along instead.
    """
    architecture, options = s.architecture, s.options
    if architecture is None:
        return {}
    found = {name: {"": f"Follows from {architecture.name}"} for name in DERIVED}
    for name in ("precision_bits", "zero_stage", "grad_ckpt"):
        reasons: dict[str, str] = {}
        for value in FIELDS[name].choices:
            try:
                plan = plan_of(s.config.replace(**{name: value}), options)
            except ValueError as error:
                reasons[str(value)] = in_labels(str(error))
                continue
            if name == "zero_stage" and plan.zero_stage not in (0, value):
                framework = choice_labels("framework")[plan.framework]
                reasons[str(value)] = f"{framework} has stage {plan.zero_stage} alone"
        if reasons:
            found[name] = reasons
    if lacking := stacks_lacking(architecture):
        found["stack"] = {name: in_labels(why) for name, why in lacking.items()}
    return found


def _preset_of(s: Simulation) -> str:
    """Return the name of the preset that is shown whole, under either model; "" for none."""
    architecture, options = s.architecture, s.options
    left_out = () if architecture is None else DERIVED
    for preset in PRESETS:
        own = architecture is None or (
            ARCHITECTURES.get(preset.architecture) == architecture and not options
        )
        if own and all(
            getattr(s.config, name) == value
            for name, value in preset.config.to_dict().items()
            if name not in left_out
        ):
            return preset.name
    return ""


def _dominates(s: Simulation) -> dict[str, str]:
    """Return what takes most at the peak, its part, and when the peak comes."""
    case, need = s.peak_case, s.components
    if case is not None:
        what, size = case.groups[0]
        when = f"in {case.when}"
    elif need.states >= need.activations:
        what, size, when = "model states", need.states, ""
    else:
        what, size, when = "activations", need.activations, ""
    return {"what": what, "share": f"{100 * size / need.total:.0f} %", "when": when}


def _summary(plan: Plan) -> str:
    """Write the plan in one line, its usual choices first."""
    named = {n: choice_labels(n) for n in ("attention", "loss_head", "optimizer")}
    chosen = [labels[getattr(plan, n)] for n, labels in named.items()]
    return " · ".join([f"attention: {chosen[0]}", *chosen[1:], f"accumulation {plan.accumulation}"])


def _idle(plan: Plan, architecture: Architecture) -> list[str]:
    """Return the options that make no difference as things are, those that differ apart."""
    makes_none = {
        "loss_chunk": plan.loss_head == CONTROLS["loss_head"].default,
        "sequence_parallel": plan.tp == 1,
        "vpp": plan.pp == 1,
        "ep": architecture.num_experts == 0,
        "expert_load": architecture.num_experts == 0,
        "no_sync": plan.accumulation == 1,
        "lora_targets": plan.lora_rank == 0,
        "quantization": plan.lora_rank == 0,
    }
    return [
        name
        for name, none in makes_none.items()
        if none and getattr(plan, name) == CONTROLS[name].default
    ]


def _detail(s: Simulation) -> list[dict[str, Any]]:
    """Rows with a bar each: the peak by kind, then from allocated to the card."""
    case, architecture = s.peak_case, s.architecture
    if case is None or architecture is None:
        return []
    most = max(case.peak.peak_bytes, *(level.high_bytes for level in case.levels))

    def row(name: str, size: float, value: str, note: str = "") -> dict[str, Any]:
        share = round(size / most, 3)
        return {"name": name.capitalize(), "value": value, "note": note, "share": share}

    kinds = [
        row(name, size, f"{size / GB:.3f} GB") for name, size in case.peak.bytes_by_kind.items()
    ]
    levels = [
        row(
            f"{level.name}, likely",
            level.high_bytes,
            f"{level.low_bytes / GB:.1f} to {level.high_bytes / GB:.1f} GB",
            f"{level.label}; {level.source}",
        )
        for level in case.levels
    ]
    peak = row("Peak", case.peak.peak_bytes, f"{case.peak.peak_bytes / GB:.3f} GB")
    return [
        row("Parameters", 0, grouped(architecture.num_params), architecture.source),
        peak | {"note": case.peak.explanation},
        *kinds,
        *levels,
    ]


def _cards(s: Simulation) -> list[dict[str, str]]:
    if s.min_gpus_to_fit is None:
        fewest, at, each = "none", "", s.min_gpus_reason or ""
    else:
        fewest, at = grouped(s.min_gpus_to_fit), f"at ZeRO-{s.zero_stage}"
        total = s.at(num_gpus=s.min_gpus_to_fit)
        each = f"{write_gb(total)} GB each"
        limit = s.limit("num_gpus")
        if limit.grade != "fits":
            surely = "none" if limit.surely is None else _number(limit.surely)
            each += f" ({GRADES[limit.grade]}), {surely} fits"
    whole = write_capacity(s.model_states_unsharded_gb)
    return [
        {
            "title": "Per GPU",
            "value": write_gb(s.components.total / GB),
            "unit": f"/ {write_capacity(s.gpu_capacity_gb)} GB",
            "note": f"{write_gb(s.utilization_percent)} % of {_capacity_is(s)}",
        },
        {"title": "Minimum GPUs", "value": fewest, "unit": at, "note": each},
        {
            "title": "Model states",
            "value": write_gb(s.components.states / GB),
            # At the peak some are not there yet and others twice: no part of the whole.
            "unit": "GB at the peak" if s.peak_case is not None else f"GB of {whole}",
            "note": _limit_note("largest micro batch", s.limit("micro_batch"), "sequence"),
        },
        {
            "title": "Activations",
            "value": write_gb(s.components.activations / GB),
            "unit": "GB",
            "note": _limit_note("longest sequence", s.limit("seq_length"), "token"),
        },
    ]


def _table(s: Simulation) -> list[list[str]]:
    """Rows of name, value: the numbers of the picture, for those who read instead of look."""
    gb = {
        "Need per GPU": s.per_gpu_total_gb,
        "Capacity per GPU": s.gpu_capacity_gb,
        "Headroom": s.headroom_gb,
        "Weights per GPU": s.weights_per_gpu_gb,
        "Gradients per GPU": s.grads_per_gpu_gb,
        "Optimizer states per GPU": s.optimizer_per_gpu_gb,
        "Activations per GPU": s.activations_per_gpu_gb,
        "Model states, unsharded": s.model_states_unsharded_gb,
        "Cluster": s.aggregate_cluster_gb,
    }
    limits = {
        "Minimum GPUs": s.limit("num_gpus"),
        "Longest sequence that fits": s.limit("seq_length"),
        "Largest micro batch that fits": s.limit("micro_batch"),
    }
    return [
        *([name, f"{value:.3f} GB"] for name, value in gb.items()),
        *([name, write_limit(limit)] for name, limit in limits.items()),
        ["Global batch", grouped(s.global_batch)],
    ]


def write_limit(limit: Limit) -> str:
    """Write a limit, its grade where that isn't `fits`, and then the value whose grade is."""
    if limit.value is None:
        return "none"
    if limit.grade == "fits":
        return _number(limit.value)
    surely = "none" if limit.surely is None else _number(limit.surely)
    return f"{_number(limit.value)} ({GRADES[limit.grade]}), {surely} fits"


GRADES: Final = {"uncertain": "uncertain", "does not fit": "too near"}
"""Grades of a limit that is one by what PyTorch allocates."""


def _number(value: int) -> str:
    """Write a number so that it stays on one line."""
    return grouped(value).replace(" ", "\N{NARROW NO-BREAK SPACE}")


def _whole(s: Simulation) -> str:
    """Return the model states of the whole model, where no card has them."""
    if s.peak_case is None:
        return ""
    return f", {write_capacity(s.model_states_unsharded_gb)} GB of states in all"


def _limit_note(name: str, limit: Limit, one: str) -> str:
    """Return a card's note about a limit."""
    if limit.value is None:
        return f"not even one {one} fits"
    return f"{name} {write_limit(limit)}"


def _capacity_is(s: Simulation) -> str:
    """Say what the capacity is: of a card with an architecture, what `torch.cuda` reports."""
    if s.model is None or s.model.usable_gib is None:
        return "capacity"
    return f"{write_capacity(s.gpu_capacity_gb)} GB usable"
