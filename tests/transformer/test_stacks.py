"""Stacks: what their tables save, what their states weigh, and that every step ends as it began."""

from dataclasses import replace

import pytest

from trainmem.transformer import (
    KINDS,
    STACKS,
    Architecture,
    Plan,
    architecture,
    levels,
    peak,
    peaks,
    reserved_bytes,
    stack,
    stages,
    timeline,
)
from trainmem.transformer.engine.tape import net
from trainmem.transformer.program import structure_of
from trainmem.transformer.step import walk

LLAMA = replace(architecture("Llama-3-8B"), num_layers=8)
MODELS = {
    "llama": LLAMA,
    "qwen3": replace(architecture("Qwen3-8B"), num_layers=8),
    "tied": replace(architecture("Llama-3.2-1B"), num_layers=8),
    "mixtral": replace(architecture("Mixtral-8x7B"), num_layers=8),
    "gpt": Architecture("gpt", "gpt", 8, 1024, 16, 8, 64, 4096, 50304),
    "neox": Architecture("neox", "neox", 8, 1024, 16, 16, 64, 4096, 50304),
    "gemma": replace(LLAMA, family="gemma", tie_embeddings=True, vocab_size=256000),
    "bert": Architecture("bert", "bert", 8, 1024, 16, 16, 64, 4096, 30522, tie_embeddings=True),
    "gpt2": replace(architecture("GPT-2"), num_layers=8, max_positions=4096),
}
LAYOUTS = {
    "dp": {},
    "tp": {"tp": 2},
    "tp without sp": {"tp": 2, "sequence_parallel": False},
    "pp": {"pp": 2, "accumulation": 4},
    "interleaved": {"pp": 2, "vpp": 2, "accumulation": 4},
    "cp": {"cp": 2},
    "ep": {"ep": 4},
    "all": {"tp": 2, "pp": 2, "vpp": 2, "cp": 2, "accumulation": 4, "num_gpus": 32},
}
#: What is run in every layout.
OFTEN = (
    ("llama", "none"),
    ("llama", "full"),
    ("llama", "selective"),
    ("tied", "every_2nd"),
    ("mixtral", "full"),
    ("gpt", "none"),
)
ADAPTERS = [
    {"lora_rank": 8, "lora_targets": targets, "quantization": quantization, "sharding": sharding}
    for targets, quantization, sharding in (
        ("qv", "none", "none"),
        ("qkv", "int8", "ddp"),
        ("attention", "nf4", "zero2"),
        ("all", "nf4_double", "zero3"),
        ("all_head", "none", "zero3"),
    )
]


def leftovers(model, plan):
    """What the events of a step leave behind, over all stages."""
    left = []
    for stage in stages(model, plan):
        structure = structure_of(
            model, plan, alone=plan.ranks == 1, single=False, chunks=3, stage=stage
        )
        events = [e for s in walk(structure).segments[1:] for e in net(s.events, s.times)]
        left += net(events, 1)
    return left


def combinations():
    """Every stack on every model and layout that it has."""
    for name in STACKS:
        for model in MODELS:
            for layout, options in LAYOUTS.items():
                for checkpointing in ("none", "selective", "full", "every_2nd"):
                    often = (model, checkpointing) in OFTEN
                    if not often and (layout != "dp" or checkpointing not in ("none", "full")):
                        continue
                    o = {"num_gpus": 8, "seq_length": 2048, "checkpointing": checkpointing}
                    yield name, model, layout, o | options


def covered():
    """Those of them that are not refused."""
    for name, model, layout, options in combinations():
        try:
            plan = stack(name, **options)
            if MODELS[model].tie_embeddings and plan.wrapping == "split":
                plan = replace(plan, wrapping="layers")
            structure_of(MODELS[model], plan, alone=False, single=False, chunks=3)
        except ValueError:
            continue
        yield pytest.param(MODELS[model], plan, id=f"{name}-{model}-{layout}-{plan.checkpointing}")


@pytest.mark.parametrize(("model", "plan"), list(covered()))
def test_a_step_ends_as_it_began(model, plan):
    assert leftovers(model, plan) == []
    result = peak(model, plan)
    assert min(result.bytes_by_kind.values()) >= 0
    assert sum(result.bytes_by_kind.values()) == pytest.approx(result.peak_bytes, abs=len(KINDS))
    assert timeline(model, plan).total_bytes.max() == pytest.approx(result.peak_bytes, abs=1)
    total = sum(peaks(model, plan).values())
    assert total == pytest.approx(result.peak_bytes, abs=len(KINDS))
    assert result.stage_peaks[result.stage] == max(result.stage_peaks) == result.peak_bytes
    assert len(result.stage_peaks) == plan.pp


@pytest.mark.parametrize("options", ADAPTERS)
@pytest.mark.parametrize(
    ("name", "model"),
    [
        (name, model)
        for name in ("transformers", "transformers+liger", "torchtune", "litgpt")
        for model in ("llama", "qwen3", "tied", "neox")
        if model != "neox" or name == "litgpt"  # the only tables of its block
    ],
)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_adapters_end_as_they_began(name, model, options, checkpointing):
    plan = stack(
        name,
        num_gpus=1 if options["sharding"] == "none" else 4,
        precision="bf16",
        loss_head="held",
        checkpointing=checkpointing,
        accumulation=2,
        seq_length=512,
        **options,
    )
    assert leftovers(MODELS[model], plan) == []
    assert min(peak(MODELS[model], plan).bytes_by_kind.values()) >= 0


@pytest.mark.parametrize(
    ("name", "offload"),
    [
        ("deepspeed-zero2", "optimizer"),
        *((name, x) for name in ("deepspeed-zero3", "transformers") for x in ("optimizer", "all")),
    ],
)
def test_offloading_saves_what_it_takes(name, offload):
    plan = stack(name, offload=offload)
    assert leftovers(LLAMA, plan) == []
    kept, moved = peak(LLAMA, stack(name)), peak(LLAMA, plan)
    assert moved.states_bytes < kept.states_bytes
    assert moved.bytes_by_kind["optimizer"] == 0
    if offload == "all":
        assert moved.bytes_by_kind["weights"] < 1e4


# ---- sums of the tables, bytes per token and layer, of Llama-3-8B ----
h, q, k, a, f = 4096, 4096, 1024, 32, 14336
SUMS = {
    ("torchtitan-none", 1): 16 * h + 8 * q + 4 * a + 8 * f + 8,
    ("torchtitan", 1): 4 * h + 4 * q + 2 * k + 4 * a + 2 * f,
    ("torch.compile", 1): 8 * h + 4 * q + 4 * k + 4 * a + 6 * f + 8,
    ("torchtitan-compile", 1): 2 * h + 4 * q + 2 * k + 4 * a + 2 * f,
    ("megatron", 1): 8 * h + 4 * q + 4 * k + 4 * a + 6 * f + 8,
    ("megatron", 4): (8 * h + 4 * q + 4 * k + 4 * a + 6 * f + 8) / 4,
    ("megatron-selective", 1): 8 * h + 4 * q + 4 * k + 6 * f + 8,
    ("megatron-full", 1): 2 * h,
    ("torchtitan-full", 1): 2 * h,
}


def saved_per_token(model, plan):
    """Bytes that one more layer keeps for its backward pass, per token."""

    def saved(layers):
        line = timeline(replace(model, num_layers=layers), plan)
        return line.bytes_by_kind[KINDS.index("saved activations")].max()

    return (saved(7) - saved(6)) / (plan.micro_batch * plan.seq_length)


@pytest.mark.parametrize(("name", "tp"), SUMS)
def test_saved_bytes_are_those_of_the_tables(name, tp):
    options = {"checkpointing": "none"} if name == "torch.compile" else {}
    plan = stack(name, tp=tp, seq_length=8192, **options)
    found = saved_per_token(architecture("Llama-3-8B"), plan)
    assert found == pytest.approx(SUMS[name, tp], abs=1)  # seeds of attention, rounding


def test_without_sequence_parallel_norms_stay_whole():
    plan = stack("megatron", tp=4, sequence_parallel=False, seq_length=8192)
    found = saved_per_token(architecture("Llama-3-8B"), plan)
    assert found == pytest.approx(8 * h + 8 + (4 * q + 4 * k + 4 * a + 6 * f) / 4, abs=1)


@pytest.mark.parametrize(("dropout", "each"), [(False, 2), (True, 5)])
@pytest.mark.parametrize("tp", [1, 2])
def test_megatrons_stored_scores_are_those_of_korthikanti(dropout, each, tp):
    """§4.1: softmax 2as²b; with dropout its mask as²b and its output 2as²b."""
    model = replace(MODELS["gpt"], num_kv_heads=16)  # grouped heads would be repeated, too
    plan = stack("megatron", num_gpus=8, micro_batch=2, seq_length=1024, tp=tp, dropout=dropout)

    def a_layer(plan):
        deep, shallow = (peak(replace(model, num_layers=n), plan).peak_bytes for n in (12, 8))
        return (deep - shallow) / 4

    stored = a_layer(replace(plan, attention="eager")) - a_layer(plan)
    assert stored == pytest.approx(each * 16 * 1024**2 * 2 / tp - 4 * 16 * 1024 * 2 / tp, rel=1e-3)
    recomputed = replace(plan, attention="eager", checkpointing="selective")
    assert abs(a_layer(recomputed) - a_layer(replace(plan, checkpointing="selective"))) < 2**20


def test_litgpt_keeps_whole_gradients_while_it_accumulates():
    """A published run of Llama-2-7B, full, bf16, over four A10G of 22.1 GiB: out of memory."""
    model = architecture("Llama-2-7B")
    steps = {"num_gpus": 4, "micro_batch": 4, "seq_length": 512}
    one, four = (peak(model, stack("litgpt", **steps, accumulation=n)).peak_bytes for n in (1, 4))
    assert one < 22.1 * 2**30 < four
    whole = 2 * model.num_params * 3 / 4  # what was reduced to a quarter before
    assert four - one == pytest.approx(whole, rel=0.1)
    alone = stack("litgpt", num_gpus=1, sharding="none")
    assert not alone.no_sync


def test_a_frozen_base_saves_less_and_a_quantised_one_more():
    plan = stack(
        "litgpt", num_gpus=1, sharding="none", checkpointing="none", lora_rank=8, seq_length=4096
    )
    model = architecture("Llama-2-7B")
    width = 11008
    frozen = saved_per_token(model, plan)
    assert frozen == pytest.approx(11 * h + 12 * h + 4 * a + 8 * width, abs=80)  # rank and norms
    quantised = saved_per_token(model, replace(plan, quantization="nf4"))
    assert quantised - frozen == pytest.approx(8 * h + 2 * width, abs=1)


def test_llmc_keeps_36h():
    found = saved_per_token(architecture("GPT-2"), stack("llm.c", seq_length=1024))
    assert found == pytest.approx(36 * 768 + 4 * 12 + 16, abs=1)


# ---- states ----
@pytest.mark.parametrize(
    ("name", "options", "per_parameter"),
    [
        ("megatron", {"sharding": "ddp"}, 18),
        ("megatron", {}, 6 + 12 / 8),
        ("deepspeed-zero1", {}, 2 + 12 / 8),  # neither gradients nor buckets between steps
        ("deepspeed-zero2", {}, 2 + 12 / 8),
        ("deepspeed-zero3", {}, 16 / 8),
        ("deepspeed-zero3", {"offload": "optimizer"}, 2 / 8),
        ("deepspeed-zero3", {"offload": "all"}, 0),
    ],
)
def test_states_per_parameter(name, options, per_parameter):
    result = peak(LLAMA, stack(name, seq_length=128, **options))
    buffers = 0.0
    if name == "deepspeed-zero3":
        buffers = 2 * 5e8
    elif name == "megatron":  # dummy gradients, one per shape of weight, and the head's
        w = q + 2 * k
        buffers = 2 * (w * h + h * q + 2 * f * h + h * f + LLAMA.vocab_size * h)
    expected = per_parameter * LLAMA.num_params + buffers
    assert result.states_bytes == pytest.approx(expected, rel=1e-3, abs=2e5)


def test_quantised_weights_weigh_what_their_blocks_do():
    plan = stack("litgpt", num_gpus=1, sharding="none", lora_rank=1, seq_length=64)
    layers = 8 * LLAMA.layer_params
    sizes = {
        kind: peak(LLAMA, replace(plan, quantization=kind)).states_bytes
        for kind in ("none", "int8", "nf4", "nf4_double")
    }
    assert sizes["none"] - sizes["int8"] == pytest.approx(layers, rel=2e-3)
    assert sizes["none"] - sizes["nf4"] == pytest.approx((2 - 0.5625) * layers, rel=2e-3)
    assert sizes["nf4"] > sizes["nf4_double"] > 0.9 * sizes["nf4"]


def test_experts_are_shared_by_expert_parallel_ranks():
    model = MODELS["mixtral"]
    # 12/dp of the optimizer is shared either way; weights and gradients of experts are divided.
    one, four = (stack("megatron", num_gpus=8, ep=ep, seq_length=256) for ep in (1, 4))
    experts = 8 * 3 * 8 * 4096 * 14336
    saved = peak(model, one).states_bytes - peak(model, four).states_bytes
    assert saved == pytest.approx(6 * experts * 3 / 4, rel=0.02)
    fuller = peak(model, replace(four, expert_load=150))
    assert fuller.peak_bytes > peak(model, four).peak_bytes


# ---- presets and levels ----
def test_stacks_explain_themselves():
    for name, preset in STACKS.items():
        assert preset.name == name
        assert preset.label
        assert preset.source
        assert isinstance(stack(name), Plan)
    with pytest.raises(ValueError, match=r"stack 'jax' is not known; choose one of transformers"):
        stack("jax")
    with pytest.raises(TypeError, match="nonsense"):
        stack("megatron", nonsense=1)
    with pytest.raises(ValueError, match="tp must be an integer from 1 to 1024, got 0"):
        stack("megatron", tp=0)


@pytest.mark.parametrize("name", STACKS)
def test_levels_nest_for_every_stack(name):
    model = MODELS["gpt2"] if name == "llm.c" else LLAMA
    plan = stack(name, seq_length=1024)
    allocated = peak(model, plan).peak_bytes
    inner, reserved, card = levels(allocated, plan, reserved_bytes(model, plan))
    for level in (inner, reserved, card):
        assert level.low_bytes <= level.expected_bytes <= level.high_bytes
        assert level.source
    assert inner.expected_bytes == allocated
    assert inner.low_bytes <= reserved.low_bytes < card.low_bytes
    assert reserved.high_bytes < card.high_bytes


def test_reserved_sums_the_pools_of_fsdp():
    plan = stack("torchtitan", loss_head="transformers", micro_batch=2, seq_length=8192)
    result = peak(LLAMA, plan)
    assert set(result.pool_bytes) == {"compute", "gather", "reduce"}
    assert result.pool_bytes["reduce"] == pytest.approx(4 * LLAMA.num_params / 8, rel=1e-3)
    pools, reserved = sum(result.pool_bytes.values()), reserved_bytes(LLAMA, plan)
    logits = 2 * 16384 * LLAMA.vocab_size
    assert result.peak_bytes < pools + logits < reserved


def test_lengths_that_vary_widen_what_is_reserved():
    plan = stack("transformers", num_gpus=1, sharding="none", precision="amp")
    varying = replace(plan, varying_lengths=True)
    allocated = peak(LLAMA, plan).peak_bytes
    assert peak(LLAMA, varying).peak_bytes == allocated
    level = levels(allocated, varying, reserved_bytes(LLAMA, varying))[1]
    assert level.high_bytes == pytest.approx(2 * allocated)
    assert "ms-swift" in level.source


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": "transformer_engine"}, "'megatron' and 'transformer_engine' go together"),
        ({"tp": 2}, "tp 2 needs kernels 'torchtitan', 'compiled' or 'transformer_engine'"),
        ({"pp": 2}, "pp 2 needs kernels 'torchtitan'"),
        ({"checkpointing": "selective"}, "checkpointing 'selective' needs kernels"),
        ({"quantization": "nf4"}, "quantization 'nf4' needs lora_rank of 1 or more, got 0"),
        ({"lora_rank": 8, "precision": "bf16_master"}, "lora_rank above 0 is covered with"),
        ({"lora_rank": 8, "quantization": "nf4"}, "'nf4' needs precision 'bf16' or 'amp'"),
        (
            {"lora_rank": 8, "lora_targets": "all_head", "loss_head": "chunked"},
            "lora_targets 'all_head' is not covered with loss_head 'chunked'",
        ),
        (
            {"framework": "deepspeed", "precision": "bf16"},
            "framework 'deepspeed' needs precision 'bf16_master', got 'bf16'",
        ),
        (
            {"framework": "deepspeed", "precision": "bf16_master", "sharding": "ddp"},
            "framework 'deepspeed' needs sharding 'zero1' to 'zero3', got 'ddp'",
        ),
        ({"kernels": "litgpt", "attention": "eager"}, "kernels 'litgpt' need attention 'flash'"),
        ({"kernels": "litgpt", "precision": "fp32"}, "kernels 'litgpt' need precision"),
        ({"cp": 2, "attention": "eager"}, "cp 2 needs attention 'flash', got 'eager'"),
    ],
)
def test_combinations_that_no_stack_has(options, message):
    with pytest.raises(ValueError, match=message):
        Plan(**options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("megatron", {"sharding": "zero3"}, "framework 'megatron' has sharding 'zero1'"),
        ("megatron", {"loss_head": "fused"}, "loss_head 'fused' is not covered with tensor"),
        ("megatron", {"offload": "all"}, "offload 'all' is not covered with framework 'megatron'"),
        ("llm.c", {"sharding": "zero2"}, "framework 'llm.c' has sharding 'zero1'"),
        ("torchtitan", {"pp": 2, "no_sync": True}, "no_sync and keep_gradients are not covered"),
    ],
)
def test_combinations_that_a_stack_lacks(name, options, message):
    with pytest.raises(ValueError, match=message):
        stack(name, **options)


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("transformers", "gemma", "family 'gemma' is not covered with kernels 'transformers'"),
        ("transformers+liger", "gemma", "kernels 'liger' .covered: litgpt"),
        ("torch.compile", "gemma", "family 'gemma' is not covered with kernels 'compiled'"),
        ("torchtune", "gemma", "family 'gemma' is not covered with kernels 'torchtitan'"),
        ("megatron", "gemma", "family 'gemma' is not covered with kernels 'transformer_engine'"),
        ("megatron", "neox", "family 'neox' is not covered with kernels 'transformer_engine'"),
        ("torchtune", "neox", "family 'neox' is not covered with kernels 'torchtitan'"),
        ("llm.c", "llama", "kernels 'llm.c' are GPT-2's, got family 'llama'"),
        ("litgpt", "gpt2", "kernels 'litgpt' are not covered for gpt2"),
        ("litgpt", "bert", "bert, which has a few classes for logits, needs loss_head 'compiled'"),
    ],
)
def test_models_that_a_stack_lacks(name, model, message):
    with pytest.raises(ValueError, match=message):
        peak(MODELS[model], stack(name, seq_length=512))
