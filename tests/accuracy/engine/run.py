"""One run: a small Llama through `deepspeed.initialize`, forward, backward and step, logged."""

import contextlib
import gc
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from engine.record import record

#: What a case leaves out. `zero` is DeepSpeed's `zero_optimization` without its stage.
DEFAULTS = {"zero": {}, "accum": 1, "ckpt": False, "mbs": 1, "seq": 16, "clip": 1.0,
            "optim": "fused", "groups2": False, "ds": {}, "rank": 0, "note": ""}  # fmt: skip

#: How torch's AdamW is made; `ds` is DeepSpeed's own.
ADAMW = {"foreach": {"foreach": True}, "fused": {"fused": True}, "forloop": {"foreach": False}}

#: Steps that are run; the last is recorded, when optimizer states and ZeRO-3's trace exist.
STEPS = 3

#: Collectives that return at once, while gloo's threads still hold their tensors.
COLLECTIVES = ("all_reduce", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor",
               "all_gather", "reduce_scatter_fn", "allgather_fn", "broadcast")  # fmt: skip


def start(case: dict[str, Any], results: Any) -> None:
    """Run a case on all its ranks, and put the record of the one it asks for into `results`."""
    import torch.multiprocessing

    port = random.randint(20000, 30000)
    torch.multiprocessing.spawn(_worker, (case, port, results), nprocs=case["ranks"])


def _worker(rank: int, case: dict[str, Any], port: int, results: Any) -> None:
    os.environ.update(
        DS_ACCELERATOR="cpu",
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(case["ranks"]),
        LOCAL_WORLD_SIZE=str(case["ranks"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
        TORCHDYNAMO_DISABLE="1",
    )
    import tracer  # before torch, which asks for its CUDA hooks once  # noqa: F401, I001
    import torch
    import deepspeed
    import deepspeed.comm

    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    for name in COLLECTIVES:
        if hasattr(deepspeed.comm, name):
            setattr(deepspeed.comm, name, _settled(getattr(deepspeed.comm, name)))
    try:
        found = run(case, rank)
        if rank == case["rank"]:
            results.append(found)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    torch.distributed.barrier()
    os._exit(0)  # the engine's threads do not end by themselves


def _settled(collective: Callable[..., Any]) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        out = collective(*args, **kwargs)
        time.sleep(0.004)
        return out

    return wait


def run(case: dict[str, Any], rank: int) -> dict[str, Any] | None:
    """Run one case on this rank; return its record on the rank that it asks for."""
    import deepspeed
    import torch
    from tracer.log import StorageLog

    log = StorageLog("cpu", round_to=1)
    settings = {
        "train_micro_batch_size_per_gpu": case["mbs"],
        "gradient_accumulation_steps": case["accum"],
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": case["stage"], **case["zero"]},
        "gradient_clipping": case["clip"],
        "zero_allow_untested_optimizer": True,
        **case["ds"],
    }
    torch.manual_seed(0)
    with log:
        log.phase = "build"
        model = build(case, settings)
        log.phase = "initialize"
        given: dict[str, Any] = {"model_parameters": model.parameters()}
        if case["optim"] == "ds":
            settings["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
        else:
            groups = grouped(model) if case["groups2"] else list(model.parameters())
            given = {"optimizer": torch.optim.AdamW(groups, lr=1e-4, **ADAMW[case["optim"]])}
        engine, *_ = deepspeed.initialize(model=model, config=settings, **given)
        ids = torch.randint(0, case["model"]["vocab"], (case["mbs"], case["seq"]))
        begins = []
        for step in range(STEPS):
            gc.collect()
            begins.append(len(log.events))
            for micro in range(case["accum"]):
                log.phase = f"{step}.m{micro}.fwd"
                loss = engine(input_ids=ids, labels=ids).loss
                log.phase = f"{step}.m{micro}.bwd"
                engine.backward(loss)
                del loss
                log.phase = f"{step}.m{micro}.step"
                engine.step()
        gc.collect()
        log.phase = "end"
    if rank != case["rank"]:
        return None
    params = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    classes = type(engine.basic_optimizer).__name__, type(engine.optimizer).__name__
    return record(case, log, begins, params, classes)


def build(case: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Make the model; at ZeRO-3 partitioned as it is made."""
    import deepspeed
    import torch
    import transformers

    shape = case["model"]
    config = transformers.LlamaConfig(
        vocab_size=shape["vocab"],
        hidden_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=4,
        num_key_value_heads=shape.get("kv", 4),
        intermediate_size=shape["ffn"],
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        use_cache=False,
    )
    partitioned = contextlib.nullcontext()
    if case["stage"] == 3:
        partitioned = deepspeed.zero.Init(config_dict_or_path=settings)
    with partitioned:
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", dtype=torch.bfloat16
        )
    model.train()
    if case["ckpt"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def grouped(model: Any) -> list[dict[str, Any]]:
    """Return parameters with and without weight decay, as the Trainer groups them."""
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if "norm" not in n], "weight_decay": 0.01},
        {"params": [p for n, p in named if "norm" in n], "weight_decay": 0.0},
    ]
