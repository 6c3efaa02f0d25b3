"""One training step of real PyTorch, transformers and FSDP2 code, on fake tensors, logged."""

import contextlib
import gc
from collections.abc import Iterable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.initialization import no_init_weights

from . import fake_cuda, heads
from .cases import Case, complete
from .log import StorageLog, moments

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "mixtral": transformers.MixtralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}
ADAMW = ("fused", "foreach", "forloop")


def build_config(geometry: Case, case: Case) -> transformers.PretrainedConfig:
    """Return the transformers configuration of a record's `model`."""
    seq, dropout, use_cache = case["seq"], case["dropout"], case["use_cache"]
    g = geometry
    common = {"vocab_size": g["vocab_size"], "tie_word_embeddings": g["tie_embeddings"]}
    if g["family"] == "gpt2":
        return transformers.GPT2Config(
            **common,
            n_embd=g["hidden_dim"],
            n_layer=g["num_layers"],
            n_head=g["num_heads"],
            n_inner=g["ffn_dim"],
            n_positions=max(seq, 1024),
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            use_cache=use_cache,
        )
    if g["family"] == "mistral":
        common["sliding_window"] = None  # as in Mistral 7B from version 0.2 on
    if g["family"] != "qwen2":  # which has no such field
        common["head_dim"] = g.get("head_dim") or g["hidden_dim"] // g["num_heads"]
    return CONFIGS[g["family"]](
        **common,
        hidden_size=g["hidden_dim"],
        num_hidden_layers=g["num_layers"],
        num_attention_heads=g["num_heads"],
        num_key_value_heads=g["num_kv_heads"],
        intermediate_size=g["ffn_dim"],
        max_position_embeddings=max(seq, 4096),
        attention_dropout=dropout,
        use_cache=use_cache,
    )


def build_model(geometry: Case, case: Case, device: str) -> torch.nn.Module:
    """Return the model as a training script has it before any sharding."""
    dtype = torch.bfloat16 if case["precision"].startswith("bf16") else torch.float32
    config = build_config(geometry, case)
    with torch.device(device), no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=case["attn"], dtype=dtype
        )
    model.tie_weights()
    model.train()
    if case["ckpt"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if case["ckpt"] == "every_2nd":
        for layer in layers_of(model)[::2]:
            layer.gradient_checkpointing = False
    heads.install(model, case["loss"], case["loss_chunk"])
    return add_lora(model, case, device) if case["lora_rank"] else model


#: Names of a plan's LoRA targets, Llama's and its kin's, then GPT-2's.
TARGETS = {
    "qv": (("q_proj", "v_proj"), ("c_attn",)),
    "attention": (("q_proj", "k_proj", "v_proj", "o_proj"), ("c_attn", "attn.c_proj")),
}


def add_lora(model: torch.nn.Module, case: Case, device: str) -> torch.nn.Module:
    """Return `model` with its base frozen and fp32 adapters on a case's targets."""
    import peft

    gpt2, targets = model.config.model_type == "gpt2", case["lora_targets"]
    linear = [name for name, m in layers_of(model)[0].named_modules() if not list(m.children())]
    linear = [name for name in linear if "proj" in name or "c_" in name]
    names = TARGETS[targets][gpt2] if targets in TARGETS else linear
    head = ("lm_head",) if targets == "all_head" else ()
    lora = peft.LoraConfig(r=case["lora_rank"], target_modules=[*names, *head])
    # Adapters are born where and as they belong; moving fake parameters would fail.
    unmoved = mock.patch.object(torch.nn.Module, "to", lambda module, *_, **__: module)
    with torch.device(device), unmoved:
        return peft.get_peft_model(model, lora)


def layers_of(model: torch.nn.Module) -> torch.nn.ModuleList:
    """Return the list of transformer blocks."""
    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))


def shard(model: torch.nn.Module, case: Case, mesh: Any) -> torch.nn.Module:
    """Return `model` wrapped for data parallelism."""
    if case["shard"] == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, init_sync=False)
        model.logger, model.reducer = fake_cuda.Null(), fake_cuda.Reducer(model.reducer)
        model.register_comm_hook(None, fake_cuda.reduced_in_place)
    elif case["shard"] != "none":
        policy = MixedPrecisionPolicy()
        if case["precision"] == "mixed":
            policy = MixedPrecisionPolicy(torch.bfloat16, getattr(torch, case["reduce"]))
        options = {
            "mesh": mesh,
            "mp_policy": policy,
            "reshard_after_forward": case["shard"] == "zero3",
        }
        for layer in layers_of(model):
            fully_shard(layer, **options)
        if case["wrap"] == "split":
            whole = model.get_base_model() if case["lora_rank"] else model
            fully_shard(whole.get_input_embeddings(), **options)
            fully_shard([whole.model.norm, whole.lm_head], **options)
        fully_shard(model, **options)
        if case["shard"] == "zero1":  # gathered weights are never given up
            model.set_reshard_after_backward(False)
    return model


class MasterAdamW:
    """AdamW on an fp32 copy of bf16 weights; scratch of one parameter at a time."""

    def __init__(self, params: Iterable[torch.nn.Parameter]):
        self.params = list(params)
        self.master = [torch.nn.Parameter(p.detach().float()) for p in self.params]
        self.inner = torch.optim.AdamW(self.master, fused=True)
        self.state = self.inner.state

    def step(self) -> None:
        group = self.inner.param_groups[0]
        for param, master in zip(self.params, self.master, strict=True):
            master.grad, group["params"] = param.grad.float(), [master]
            self.inner.step()
            master.grad = None
            param.data.copy_(master)
        group["params"] = self.master

    def zero_grad(self, set_to_none: bool = True) -> None:
        for param in self.params:
            param.grad = None if set_to_none else param.grad.zero_()


def build_optimizer(params: list[torch.nn.Parameter], case: Case) -> Any:
    """Return the optimizer of a case."""
    kind = case["optim"]
    if case["precision"] == "bf16_master":
        if kind != "fused":
            raise ValueError(f"optim must be 'fused' under bf16_master, got {kind!r}")
        return MasterAdamW(params)
    if kind in ADAMW:
        return torch.optim.AdamW(params, fused=kind == "fused", foreach=kind == "foreach")
    if kind in ("sgd", "sgd_momentum"):
        momentum = 0.9 if kind == "sgd_momentum" else 0.0
        return torch.optim.SGD(params, 1e-3, momentum=momentum, foreach=True)
    if kind == "adamw8bit" and not case["shard"].startswith("zero"):
        import bitsandbytes

        with unset_fake_temporarily():  # it computes the table of its 256 values
            return bitsandbytes.optim.AdamW8bit(params)
    raise ValueError(f"optim {kind!r} is unknown, or not possible with shard {case['shard']!r}")


def gathered(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    """Yield FSDP's unsharded parameters."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for param in group.fsdp_params:
                    yield from param.all_gather_outputs


class Step:
    """A model, its optimizer and its input, ready to train under a log."""

    def __init__(self, record: Case, log: StorageLog, mesh: Any):
        self.case, self.log = record["case"], log
        self.model = shard(build_model(record["model"], self.case, log.device), self.case, mesh)
        self.params = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(self.params, self.case)
        shape = (self.case["mbs"], self.case["seq"])
        self.ids = torch.zeros(shape, dtype=torch.long, device=log.device)
        log.tag(self.model.parameters(), "param")
        log.tag(getattr(self.optimizer, "master", []), "optimizer")
        log.tag(self.model.buffers(), "buffer")
        log.tag([self.ids], "input")

    def run(self) -> None:
        """Train one step."""
        case, log = self.case, self.log
        for micro in range(case["accum"]):
            self._micro_batch(last=micro == case["accum"] - 1)
        log.tag([p.grad for p in self.params if p.grad is not None], "grad")
        log.tag(gathered(self.model), "gathered")
        log.phase = "opt"
        self.optimizer.step()
        state = self.optimizer.state.values()
        log.tag([t for s in state for t in s.values() if torch.is_tensor(t)], "optimizer")
        self.optimizer.zero_grad(set_to_none=not case["keep_grads"])

    def _micro_batch(self, last: bool) -> None:
        case, context = self.case, contextlib.ExitStack()
        if case["no_sync"] or case["shard"] == "zero1":  # which keeps whole gradients till the end
            if case["shard"].startswith("zero"):
                self.model.set_requires_gradient_sync(last)
            elif case["shard"] == "ddp" and not last:
                context.enter_context(self.model.no_sync())
        with context:
            self.log.phase = "fwd"
            with autocast(case, self.log.device):
                outputs = self.model(input_ids=self.ids, labels=self.ids)
                loss = outputs.loss
                if case["loss"] == "pieces":
                    loss = heads.loss_in_pieces(outputs.logits, self.ids)
                if case["loss"] != "returned":
                    del outputs
            self.log.phase = "bwd"
            loss.backward()


def autocast(case: Case, device: str) -> contextlib.AbstractContextManager:
    """Return the context of the forward pass."""
    enabled = case["precision"] == "amp"
    return torch.autocast(device, torch.bfloat16) if enabled else contextlib.nullcontext()


@contextlib.contextmanager
def process_group(case: Case, device: str):
    """A fake process group of the case's size, and its mesh, where the case has one."""
    if case["shard"] == "none":
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["world"])
    try:
        yield dist.init_device_mesh(device, (case["world"],))
    finally:
        dist.destroy_process_group()


def run(
    record: Case, log: StorageLog, mode: contextlib.AbstractContextManager | None = None
) -> tuple[torch.nn.Module, int]:
    """Train two steps; return the model and the event at which the second begins.

    `mode` is what makes tensors fake, and a null context makes them real.
    """
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    with process_group(record["case"], log.device) as mesh, mode, log:
        step = Step(record, log, mesh)
        for _ in range(2):
            gc.collect()
            start = len(log.events)
            step.run()
    return step.model, start


def trace(record: Case) -> Case:
    """Return a record with the memory of its step on a fake CUDA device.

    The second step is the one reported, because optimizer states exist by then.
    """
    record, log = complete(record), StorageLog()
    model, start = run(record, log)
    vocab, totals = record["model"]["vocab_size"], log.totals()
    at = moments(log, start, vocab)
    sizes = {name: totals[n] for name, n in at.items()}
    phase = max((name for name in sizes if name != "after_fwd"), key=sizes.__getitem__)
    layer = layers_of(model)[0]
    return {
        **record,
        "params": sum(p.numel() for p in model.parameters()),
        "layer_params": sum(p.numel() for p in layer.parameters()),
        "states_bytes": totals[start - 1],
        "peak_bytes": sizes[phase],
        "peak_phase": phase,
        "peak_by": log.by_kind(at[phase], vocab),
        "moments_bytes": sizes,
    }
