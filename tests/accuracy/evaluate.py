"""How far the models are from ground truth: traced steps and published measurements.

    python tests/accuracy/evaluate.py FILE...

Takes files of either schema (traced: what PyTorch allocates, exact; measured: what people saw on
GPUs) and prints a line per case, then per group a summary of the architecture-aware and of the
reduced-order model, and what is not covered and why. Rows marked `suspect` are left out.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trainmem import simulate
from trainmem.transformer import Architecture, Plan, levels, peak

OPTIMIZERS = {"fused": "adamw", "foreach": "adamw_foreach", "forloop": "adamw_forloop"}
LOSSES = {"full": "transformers", "chunked": "chunked", "liger": "fused"}
GIB = 2**30


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
    if case.get("lora_rank"):
        raise ValueError(f"lora_rank {case['lora_rank']} is not covered")
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
    )
    plan = Plan(
        num_gpus=case["world"],
        micro_batch=case["mbs"],
        seq_length=case["seq"],
        sharding=case["shard"],
        precision=case["precision"],
        optimizer=OPTIMIZERS.get(case["optim"], case["optim"]),
        attention={"sdpa": "flash"}.get(case["attn"], case["attn"]),
        loss_head=LOSSES[case.get("loss", "full")],
        loss_chunk=case.get("loss_chunk", 1024),
        checkpointing="full" if case["ckpt"] else "none",
        accumulation=case["accum"],
        no_sync=case.get("no_sync", False),
        keep_gradients=case["keep_grads"],
        wrapping=case["wrap"],
        reduce_dtype=case["reduce"] if case["precision"] == "mixed" else "float32",
        dropout=case["dropout"] > 0,
    )
    return arch, plan


FAMILIES = {"Qwen-": "qwen2", "Qwen2": "qwen2", "Llama": "llama", "Mistral": "mistral"}


def measured_inputs(row: dict[str, Any]) -> tuple[Architecture, Plan]:
    """The model and plan of a measured row (transformers, data parallel, full training)."""
    norm = row["norm"]
    if (norm["stack"], norm["mesh"], norm["tuning"]) != ("transformers", "dp", "full"):
        raise ValueError(f"stack {norm['stack']}, mesh {norm['mesh']}, tuning {norm['tuning']}")
    if norm["moe"]:
        raise ValueError("mixture of experts")
    family = next((f for start, f in FAMILIES.items() if row["model"].startswith(start)), None)
    if family is None:
        raise ValueError(f"model {row['model']} is of no covered family")
    arch = Architecture(
        name=row["model"],
        family=family,
        num_layers=row["layers"],
        hidden_dim=row["hidden"],
        num_heads=row["heads"],
        num_kv_heads=row["kv_heads"],
        head_dim=row["head_dim"],
        ffn_dim=row["ffn"],
        vocab_size=row["vocab"],
        tie_embeddings=row["tied"],
        source=row["source"],
    )
    stage = row.get("zero_stage", 0)
    world = row.get("n_gpus", 1)
    sharding = f"zero{stage}" if stage else "ddp" if world > 1 else "none"
    pure = row.get("param_dtype") == "bf16"
    plan = Plan(
        num_gpus=world,
        micro_batch=row["micro_batch"],
        seq_length=row["seq_len"],
        sharding=sharding,
        precision="bf16" if pure else "mixed" if stage else "amp",
        optimizer="adamw_foreach",  # what the Hugging Face Trainer ran until 2025
        attention="eager" if row.get("attention") == "eager" else "flash",
        checkpointing=norm["ckpt"],
        accumulation=row.get("grad_accum", 1),
    )
    return arch, plan


def reduced_bytes(arch: Architecture, plan: Plan) -> float:
    """Total of the reduced-order model for the same step."""
    stage = int(plan.sharding[-1]) if plan.fsdp else 0
    result = simulate(
        model_params_b=arch.num_params / 1e9,
        num_gpus=plan.num_gpus,
        gpu_memory_gb=80,
        micro_batch=plan.micro_batch,
        seq_length=plan.seq_length,
        num_layers=arch.num_layers,
        hidden_dim=arch.hidden_dim,
        precision_bits=32 if plan.precision == "fp32" else 16,
        zero_stage=stage,
        grad_ckpt=int(plan.checkpointing == "full"),
    )
    return float(result.components.total)


def evaluate(path: Path) -> list[Case]:
    """Run the models on every row of a file."""
    cases = []
    for row in json.loads(path.read_text()):
        if row.get("suspect") or row.get("norm", {}).get("suspect") or "error" in row:
            continue
        traced = "case" in row
        if not traced and row.get("outcome") != "measured":
            continue
        group = path.stem if traced else f"{path.stem} {row['norm']['level']}"
        true = row["peak_bytes"] if traced else row["value_gib"] * GIB
        base = {
            "name": row["name"] if traced else row["id"],
            "group": group,
            "true_bytes": true,
            "true_phase": row.get("peak_phase", ""),
        }
        try:
            arch, plan = traced_inputs(row) if traced else measured_inputs(row)
            result = peak(arch, plan)
        except ValueError as error:
            cases.append(Case(**base, reason=str(error)))
            continue
        inside = None
        if not traced:
            level = next(
                (x for x in levels(result.peak_bytes, plan) if group.endswith(x.name)), None
            )
            inside = level is not None and level.low_bytes <= true <= level.high_bytes
        cases.append(
            Case(
                **base,
                predicted_bytes=result.peak_bytes,
                predicted_phase=result.phase,
                reduced_bytes=reduced_bytes(arch, plan),
                inside=inside,
            )
        )
    return cases


def summary(name: str, cases: list[Case], reduced: bool = False) -> str:
    """The line of a group."""
    covered = [c for c in cases if c.predicted_bytes is not None]
    if reduced:
        pairs = [(c.reduced_bytes, c.true_bytes) for c in covered if c.reduced_bytes is not None]
    else:
        pairs = [(c.predicted_bytes, c.true_bytes) for c in covered]
    if not pairs:
        return f"{name}: covered 0 of {len(cases)}"
    errors = sorted(100 * abs(predicted / true - 1) for predicted, true in pairs)
    line = (
        f"{name}: covered {len(pairs)} of {len(cases)}, median {median(errors):.4f} %, "
        f"90th {errors[int(0.9 * (len(errors) - 1))]:.4f} %, worst {errors[-1]:.4f} %"
    )
    phased = [c for c in covered if c.true_phase]
    if phased and not reduced:
        right = sum(c.predicted_phase == c.true_phase for c in phased)
        line += f", phase right {right} of {len(phased)}"
    judged = [c for c in covered if c.inside is not None]
    if judged and not reduced:
        line += f", inside the interval {sum(bool(c.inside) for c in judged)} of {len(judged)}"
    return line


def main(paths: list[str]) -> None:
    """Print the report."""
    for path in map(Path, paths):
        cases = evaluate(path)
        for c in cases:
            if c.predicted_bytes is not None:
                print(
                    f"{c.name:58s} {c.predicted_bytes / GIB:10.4f} {c.true_bytes / GIB:10.4f} GiB "
                    f"{100 * c.error:+9.4f} %  {c.predicted_phase} {c.true_phase}"
                )
        for group in dict.fromkeys(c.group for c in cases):
            rows = [c for c in cases if c.group == group]
            print(summary(group, rows))
            print(summary(f"{group} (reduced-order model)", rows, reduced=True))
        reasons: dict[str, int] = {}
        for c in cases:
            if c.reason:
                reasons[c.reason] = reasons.get(c.reason, 0) + 1
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
            print(f"  not covered: {count} × {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
