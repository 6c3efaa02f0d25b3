"""How far the models are from ground truth: traced steps and published measurements.

    python tests/accuracy/evaluate.py FILE...

Takes files of each schema (traced: what PyTorch allocates, exact; runs of DeepSpeed's engine,
moment by moment; measured: what people saw on GPUs) and prints a line per case, then per group a
summary of the architecture-aware and of the reduced-order model, the verdicts on runs that finished
or ran out of memory, and what is not covered and why. Groups of measured rows are classes, stack ·
tuning · level; a row is compared at the level it was measured at. Rows marked `suspect` are left
out.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measured import measured_inputs

from trainmem.reduced import components
from trainmem.transformer import (
    Architecture,
    Plan,
    grade,
    levels,
    peak,
    reserved_bytes,
    stack,
)

OPTIMIZERS = {
    "adamw8bit": "adam8bit",
    "fused": "adamw",
    "foreach": "adamw_foreach",
    "forloop": "adamw_forloop",
    "ds": "adamw",  # DeepSpeed's own, fused
}
LOSSES = {"full": "transformers", "liger": "fused"}
GIB = 2**30

#: Experts of traced Mixtral rows, which do not say.
MIXTRAL = {"num_experts": 8, "experts_per_token": 2}


@dataclass(frozen=True)
class Case:
    """One row: what it is, what is true, and what each model says."""

    name: str
    group: str
    true_bytes: float
    predicted_bytes: float | None = None
    true_phase: str = ""
    predicted_phase: str = ""
    reduced_bytes: float | None = None
    reason: str = ""
    inside: bool | None = None  # whether a measured value lies in the predicted interval
    outcome: str = ""  # of a measured run: measured, fits, OOM
    grade: str = ""  # what is predicted for the card it ran on

    @property
    def error(self) -> float:
        """Signed error of the architecture-aware model, as a fraction."""
        assert self.predicted_bytes is not None
        return self.predicted_bytes / self.true_bytes - 1


def traced_inputs(row: dict[str, Any]) -> tuple[Architecture, Plan]:
    """The model and plan of a traced row.

    Raises
    ------
    ValueError
        Where the row is outside what is covered.
    """
    model, case = row["model"], row["case"]
    heads = model["num_heads"]
    arch = Architecture(
        name=row["name"],
        family=model["family"],
        num_layers=model["num_layers"],
        hidden_dim=model["hidden_dim"],
        num_heads=heads,
        num_kv_heads=model["num_kv_heads"],
        head_dim=model.get("head_dim") or model["hidden_dim"] // heads,
        ffn_dim=model["ffn_dim"],
        vocab_size=model["vocab_size"],
        tie_embeddings=model["tie_embeddings"],
        max_positions=max(case["seq"], 1024),
        **(MIXTRAL if model["family"] == "mixtral" else {}),
    )
    plan = Plan(
        num_gpus=case["world"],
        micro_batch=case["mbs"],
        seq_length=case["seq"],
        sharding=case["shard"],
        precision=case["precision"],
        optimizer=OPTIMIZERS.get(case["optim"], case["optim"]),
        attention={"sdpa": "flash"}.get(case["attn"], case["attn"]),
        loss_head=LOSSES.get(case.get("loss", "full"), case.get("loss")),
        loss_chunk=case.get("loss_chunk", 1024),
        checkpointing={True: "full", False: "none"}.get(case["ckpt"], case["ckpt"]),
        accumulation=case["accum"],
        no_sync=case.get("no_sync", False),
        keep_gradients=case["keep_grads"],
        wrapping=case["wrap"],
        reduce_dtype=case["reduce"] if case["precision"] == "mixed" else "float32",
        dropout=case.get("dropout", 0) > 0,
        use_cache=case.get("use_cache", False) and not case["ckpt"],  # turned off where it is
        lora_rank=case.get("lora_rank", 0),
        lora_targets=case.get("lora_targets", "all"),
    )
    return arch, plan


#: Keys of `zero_optimization` that a file of DeepSpeed's runs has, and that allocate nothing.
NO_MEMORY = ("allgather_bucket_size", "use_multi_rank_bucket_allreduce")


def engine_inputs(record: dict[str, Any]) -> tuple[Architecture, Plan]:
    """The model and plan of a run of DeepSpeed's engine (a record of `data/deepspeed.json`)."""
    model, case = record["model"], record["case"]
    section = case["zero_optimization"]
    settings = {k: v for k, v in section.items() if k not in NO_MEMORY}
    settings |= case.get("data_types", {}) | {"param_groups": case["param_groups"]}
    arch = Architecture(
        name="run",
        family=model["family"],
        num_layers=model["num_layers"],
        hidden_dim=model["hidden_dim"],
        num_heads=model["num_heads"],
        num_kv_heads=model["num_kv_heads"],
        head_dim=model["hidden_dim"] // model["num_heads"],
        ffn_dim=model["ffn_dim"],
        vocab_size=model["vocab_size"],
        tie_embeddings=model["tie_embeddings"],
    )
    plan = stack(
        f"deepspeed-zero{case['stage']}",
        num_gpus=case["ranks"],
        micro_batch=case["mbs"],
        seq_length=case["seq"],
        optimizer=OPTIMIZERS.get(case["optimizer"], case["optimizer"]),
        checkpointing="full" if case["ckpt"] else "none",
        accumulation=case["accum"],
        settings=settings,
    )
    return arch, plan


#: Moments of a run of DeepSpeed's engine, and the phases that the model has for them.
MOMENTS = {"fwd": ("fwd",), "bwd": ("loss", "layers", "other"), "step": ("opt",)}


def engine_cases(record: dict[str, Any], number: int) -> list[Case]:
    """Compare a run of DeepSpeed's engine: at rest, in backward, in the step, and the peak."""
    case = record["case"]
    name = f"{number}: ZeRO-{case['stage']}, rank {case['rank_logged']} of {case['ranks']}"
    found = dict.fromkeys(MOMENTS, 0.0)
    for phase, top in record["phases"].items():
        moment = phase.partition(".")[2]
        found[moment] = max(found[moment], top["bytes"])
    true = {"at rest": record["persistent_bytes"], "backward": found["bwd"], "step": found["step"],
            "peak": record["peak_bytes"]}  # fmt: skip
    base = [Case(name, f"deepspeed · {moment}", true[moment]) for moment in true]
    try:
        result = peak(*engine_inputs(record), rank=case["rank_logged"])
    except ValueError as error:
        return [replace(each, reason=str(error)) for each in base]
    tops = {
        moment: max(result.phase_bytes.get(phase, 0) for phase in phases)
        for moment, phases in MOMENTS.items()
    }
    told = (result.states_bytes, tops["bwd"], tops["step"], result.peak_bytes)
    base = [replace(each, predicted_bytes=x) for each, x in zip(base, told, strict=True)]
    moment_of = {phase: moment for moment, phases in MOMENTS.items() for phase in phases}
    base[-1] = replace(
        base[-1],
        true_phase=record["peak_phase"].partition(".")[2],
        predicted_phase=moment_of[result.phase],
    )
    return [each for each in base if each.true_bytes]


def reduced_bytes(arch: Architecture, plan: Plan) -> float:
    """Total of the reduced-order model for the same step."""
    return float(
        components(
            model_params_b=arch.num_params / 1e9,
            num_gpus=plan.num_gpus,
            micro_batch=plan.micro_batch,
            seq_length=plan.seq_length,
            num_layers=arch.num_layers,
            hidden_dim=arch.hidden_dim,
            precision_bits=32 if plan.precision == "fp32" else 16,
            zero_stage=plan.zero_stage,
            grad_ckpt=int(plan.checkpointing == "full"),
        ).total
    )


#: The level of counting that a measured row's `level` is compared at.
LEVELS = {"active": "allocated", "unknown": "reserved"}


def evaluate(path: Path) -> list[Case]:
    """Run the models on every row of a file."""
    read = json.loads(path.read_text())
    if isinstance(read, dict):
        records = enumerate(read["records"])
        return [case for number, record in records for case in engine_cases(record, number)]
    rows = [row for row in read if "error" not in row]
    rows = [row for row in rows if not (row.get("suspect") or row.get("norm", {}).get("suspect"))]
    return [traced_case(row, path.stem) if "case" in row else measured_case(row) for row in rows]


def traced_case(row: dict[str, Any], group: str) -> Case:
    """Compare a traced row."""
    base = Case(row["name"], group, row["peak_bytes"], true_phase=row.get("peak_phase", ""))
    try:
        arch, plan = traced_inputs(row)
        result = peak(arch, plan)
    except ValueError as error:
        return replace(base, reason=str(error))
    return replace(
        base,
        predicted_bytes=result.peak_bytes,
        predicted_phase=result.phase,
        reduced_bytes=reduced_bytes(arch, plan),
    )


def measured_case(row: dict[str, Any]) -> Case:
    """Compare a measured row at the level it was measured at, and grade it for its card."""
    norm = row["norm"]
    base = Case(
        row["id"],
        f"{norm['stack']} · {norm['tuning']} · {norm['level']}",
        (row.get("value_gib") or 0) * GIB,
        outcome=row["outcome"],
    )
    try:
        arch, plan = measured_inputs(row)
        result = peak(arch, plan)
    except ValueError as error:
        return replace(base, reason=str(error))
    name = LEVELS.get(norm["level"], norm["level"])
    three = levels(result.peak_bytes, plan, reserved_bytes(arch, plan))
    level = next(level for level in three if level.name == name)
    card = row.get("capacity_gib") or row.get("gpu_mem_gib")
    return replace(
        base,
        predicted_bytes=level.expected_bytes,
        predicted_phase=result.phase,
        reduced_bytes=None if plan.lora_rank else reduced_bytes(arch, plan),
        inside=level.low_bytes <= base.true_bytes <= level.high_bytes if base.true_bytes else None,
        grade=grade_of(result.peak_bytes, card, plan, three[2].low_bytes) if card else "",
    )


def grade_of(need: float, card: float, plan: Plan, low: float) -> str:
    """The grade of a need in bytes on a card of so many GiB."""
    return grade(need, card, framework=plan.framework, card_low_bytes=low)


def summary(name: str, cases: list[Case], reduced: bool = False) -> str:
    """The line of a group."""
    counted = sum(c.predicted_bytes is not None for c in cases)
    covered = [c for c in cases if c.predicted_bytes is not None and c.true_bytes]
    if reduced:
        pairs = [(c.reduced_bytes, c.true_bytes) for c in covered if c.reduced_bytes is not None]
    else:
        pairs = [(c.predicted_bytes, c.true_bytes) for c in covered]
    if not pairs:
        return f"{name}: covered {counted} of {len(cases)}"
    errors = sorted(100 * abs(predicted / true - 1) for predicted, true in pairs)
    signed = median(100 * (predicted / true - 1) for predicted, true in pairs)
    line = (
        f"{name}: covered {counted} of {len(cases)}, signed {signed:+.4f} %, "
        f"median {median(errors):.4f} %, 90th {errors[math.ceil(0.9 * len(errors)) - 1]:.4f} %, "
        f"worst {errors[-1]:.4f} %"
    )
    phased = [c for c in covered if c.true_phase]
    if phased and not reduced:
        right = sum(c.predicted_phase == c.true_phase for c in phased)
        line += f", phase right {right} of {len(phased)}"
    judged = [c for c in covered if c.inside is not None]
    if judged and not reduced:
        line += f", inside the interval {sum(bool(c.inside) for c in judged)} of {len(judged)}"
    return line


def wrong_verdicts(cases: list[Case]) -> list[Case]:
    """Runs that ran out of memory and are called `fits`, or finished and `does not fit`."""
    return [
        c
        for c in cases
        if (c.outcome == "OOM" and c.grade == "fits")
        or (c.outcome not in ("", "OOM") and c.grade == "does not fit")
    ]


def report(path: Path) -> None:
    """Print the report of one file."""
    cases = evaluate(path)
    for c in cases:
        if c.predicted_bytes is not None and c.true_bytes:
            print(
                f"{c.name:58s} {c.predicted_bytes / GIB:10.4f} {c.true_bytes / GIB:10.4f} GiB "
                f"{100 * c.error:+9.4f} %  {c.predicted_phase} {c.true_phase}"
                + ("" if c.inside is None else " inside" if c.inside else " OUTSIDE")
            )
        elif c.predicted_bytes is not None:
            print(f"{c.name:58s} {c.outcome}: {c.grade}")
    for group in dict.fromkeys(c.group for c in cases):
        rows = [c for c in cases if c.group == group]
        print(summary(group, rows))
        print(summary(f"{group} (reduced-order model)", rows, reduced=True))
    graded = [c for c in cases if c.grade]
    if graded:
        for outcome in dict.fromkeys(c.outcome for c in graded):
            grades = [c.grade for c in graded if c.outcome == outcome]
            counts = ", ".join(f"{g} {grades.count(g)}" for g in dict.fromkeys(grades))
            print(f"verdicts on runs that ended as {outcome!r}: {counts}")
        print("wrong verdicts:", [c.name for c in wrong_verdicts(cases)] or "none")
    reasons: dict[str, int] = {}
    for c in cases:
        if c.reason:
            reasons[c.reason] = reasons.get(c.reason, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        print(f"  not covered: {count} × {reason}")


def main(paths: list[str]) -> None:
    """Print the report of every file."""
    for path in map(Path, paths):
        report(path)


if __name__ == "__main__":
    main(sys.argv[1:])
