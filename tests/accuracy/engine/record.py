"""What a log of the engine says: at rest, and the highest point of each phase of the last step."""

from typing import Any

#: Where gloo clones the input of a reduce-scatter; NCCL does not.
CLONED = "split.Tensor"


def record(
    case: dict[str, Any], log: Any, begins: list[int], params: int, classes: tuple[str, str]
) -> dict[str, Any]:
    """Return a run's record, as in `data/deepspeed.json`."""
    model, start = case["model"], begins[-1]
    totals = log.totals()
    cloned = {i for i, origin in enumerate(log.origins) if origin.op.startswith(CLONED)}
    taken_out = 0
    phases: dict[str, dict[str, Any]] = {}
    for event, total in zip(log.events[start:], totals[start:], strict=True):
        if event.id in cloned:
            taken_out += event.change
        name = event.phase.partition(".")[2]
        if not name:  # after the step
            continue
        now = total - taken_out
        top = phases.setdefault(name, {"bytes": 0})
        top["bytes"] = max(top["bytes"], now)
        top["at_end_per_param"] = round(now / params, 4)
    for top in phases.values():
        top["per_param"] = round(top["bytes"] / params, 4)
    highest = max(phases, key=lambda name: phases[name]["bytes"])
    return {
        "model": {
            "family": "llama",
            "hidden_dim": model["hidden"],
            "num_layers": model["layers"],
            "ffn_dim": model["ffn"],
            "vocab_size": model["vocab"],
            "num_heads": 4,
            "num_kv_heads": model.get("kv", 4),
            "tie_embeddings": False,
            "params": params,
        },
        "case": {
            "stage": case["stage"],
            "ranks": case["ranks"],
            "rank_logged": case["rank"],
            "optimizer": case["optim"],
            "optimizer_class": classes[0],
            "zero_class": classes[1],
            "accum": case["accum"],
            "ckpt": case["ckpt"],
            "mbs": case["mbs"],
            "seq": case["seq"],
            "gradient_clipping": case["clip"],
            "param_groups": 2 if case["groups2"] else 1,
            "zero_optimization": case["zero"],
            **case["ds"],
            "note": case["note"],
        },
        "persistent_bytes": totals[start - 1],
        "persistent_per_param": round(totals[start - 1] / params, 4),
        "phases": phases,
        "peak_bytes": phases[highest]["bytes"],
        "peak_per_param": phases[highest]["per_param"],
        "peak_phase": highest,
        "initialize_peak_bytes": max(totals[: begins[0]]),
    }
