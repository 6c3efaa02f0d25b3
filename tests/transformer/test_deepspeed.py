"""DeepSpeed's engine: each option that changes memory, by what its documents and sources say."""

import json
from dataclasses import replace

import pytest

from trainmem import simulate
from trainmem.readers import read_configuration
from trainmem.transformer import ARCHITECTURES, Architecture, Plan, peak, peaks, stack
from trainmem.transformer.engine.tape import net
from trainmem.transformer.program import structure_of
from trainmem.transformer.stacks import FRAMEWORKS
from trainmem.transformer.stacks.deepspeed_gather import Coordinator
from trainmem.transformer.stacks.deepspeed_partitions import FULLEST, Reductions, layout
from trainmem.transformer.step import walk

LLAMA = ARCHITECTURES["Llama-3-8B"]
P, GB = LLAMA.num_params, 10**9
BUCKET = 500_000_000
EMBEDDING = LLAMA.vocab_size * LLAMA.hidden_dim


def of(stage, gpus=8, **options):
    """Return a step of few tokens, so that states and gradients are all that counts."""
    return stack(f"deepspeed-zero{stage}", num_gpus=gpus, seq_length=16, **options)


def backward(plan, model=LLAMA, **which):
    """Return the highest point of the backward passes, in bytes."""
    phases = peak(model, plan, **which).phase_bytes
    return max(phases.get(phase, 0) for phase in ("loss", "layers", "other"))


def step(plan, **which):
    return peak(LLAMA, plan, **which).phase_bytes["opt"]


# ---- the table in the documents of the engine's runs, GB ----
@pytest.mark.parametrize(
    ("stage", "gpus", "rest", "passes", "update"),
    [
        (1, 2, 64.2, 89.4, 96.4),
        (1, 8, 28.1, 47.3, 36.3),
        (2, 2, 64.2, 74.4, 96.4),
        (2, 8, 28.1, 32.4, 36.3),
        (2, 64, 17.6, 22.0, 19.7),
        (3, 2, 65.2, 68.6, 71.4),
        (3, 8, 17.1, 20.4, 23.1),
        (3, 64, 3.0, 6.4, 3.8),
    ],
)
def test_llama_3_8b_at_the_default_buckets(stage, gpus, rest, passes, update):
    plan = of(stage, gpus)
    found = peak(LLAMA, plan).states_bytes, backward(plan), step(plan)
    assert [round(x / GB, 1) for x in found] == [rest, passes, update]


@pytest.mark.parametrize(("stage", "gpus", "foreach"), [(3, 8, 25.1), (2, 8, 36.3)])
def test_foreach_adds_square_roots_of_the_part(stage, gpus, foreach):
    plan = of(stage, gpus, optimizer="adamw_foreach")
    assert round(step(plan) / GB, 1) == foreach
    part = P / gpus
    above = step(plan) - peak(LLAMA, plan).states_bytes
    assert above == pytest.approx(8 * part if stage == 3 else 8 * part + EMBEDDING, rel=0.25)


# ---- what each setting changes ----
@pytest.mark.parametrize("stage", [1, 2])
def test_overlap_takes_a_second_bucket(stage):
    plain, overlapping = of(stage), of(stage, settings={"overlap_comm": True})
    least = 2 * BUCKET if stage == 2 else 0  # ZeRO-1 then reduces in the hooks: fewer gradients
    assert backward(overlapping) - backward(plain) >= least - 2 * P * (stage == 1)
    assert peak(LLAMA, overlapping).states_bytes == peak(LLAMA, plain).states_bytes
    assert step(overlapping, rank=0) == step(plain, rank=0)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_bucket_is_whole_whatever_it_holds(stage):
    small = of(stage, settings={"reduce_bucket_size": BUCKET // 10})
    saved = backward(of(stage)) - backward(small)
    assert saved >= 2 * 0.9 * BUCKET * 0.5
    at_rest = peak(LLAMA, of(stage)).states_bytes - peak(LLAMA, small).states_bytes
    assert at_rest == pytest.approx(2 * 0.9 * BUCKET if stage == 3 else 0, abs=1024)


def test_without_parts_the_bucket_is_not_copied():
    whole, model = of(2, settings={"reduce_scatter": False}), replace(LLAMA, vocab_size=1000)
    assert backward(of(2), model) - backward(whole, model) >= 0.8 * 2 * BUCKET


def test_without_a_contiguous_bucket_there_is_none():
    scattered = of(3, settings={"contiguous_gradients": False})
    saved = peak(LLAMA, of(3)).states_bytes - peak(LLAMA, scattered).states_bytes
    assert saved == 2 * BUCKET


def test_sub_groups_bound_the_step_of_zero_3():
    whole, grouped = of(3), of(3, settings={"sub_group_size": 100_000_000})
    above = step(grouped) - peak(LLAMA, grouped).states_bytes
    assert above < step(whole) - peak(LLAMA, whole).states_bytes
    assert 6e8 <= above + 2 * 266_240 * 8 <= 6 * (1e8 + EMBEDDING / 8)
    assert backward(whole) == backward(grouped)


def test_fp32_gradients():
    fp32 = {"grad_accum_dtype": "fp32"}
    n = 8
    rest = {z: peak(LLAMA, of(z, n)).states_bytes for z in (1, 2, 3)}
    wide = {z: peak(LLAMA, of(z, n, settings=fp32)).states_bytes for z in (1, 2, 3)}
    assert wide[1] - rest[1] == pytest.approx(4 * P, rel=1e-3)
    assert wide[2] == rest[2]
    assert wide[3] - rest[3] == pytest.approx(2 * P / n, rel=1e-3)
    two = step(of(2, n, settings=fp32)) - rest[2]
    assert two == pytest.approx(4 * P / n + 8 * EMBEDDING, rel=1e-2)  # and the norm in fp64


def test_live_parameters_bound_what_is_gathered():
    few = of(3, settings={"stage3_max_live_parameters": 10**8, "stage3_max_reuse_distance": 0})
    kinds = [peak(LLAMA, plan).phase_bytes["fwd"] for plan in (of(3), few)]
    assert kinds[0] - kinds[1] >= 1.5e9
    every = of(3, settings={"stage3_max_live_parameters": 10**11})
    assert backward(every) - backward(of(3)) >= 2 * P - 4e9


def test_small_parameters_stay_whole():
    every = of(3, settings={"stage3_param_persistence_threshold": 0})
    norms = 2 * (2 * LLAMA.num_layers + 1) * LLAMA.hidden_dim
    assert peak(LLAMA, of(3)).states_bytes - peak(LLAMA, every).states_bytes == pytest.approx(
        norms, abs=1024
    )


def test_auto_is_what_transformers_makes_of_the_hidden_size():
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size",
             "stage3_param_persistence_threshold")  # fmt: skip
    hidden = LLAMA.hidden_dim
    numbers = (hidden**2, int(0.9 * hidden**2), 10 * hidden)
    auto = of(3, settings=dict.fromkeys(names, "auto"))
    assert peak(LLAMA, auto) == peak(LLAMA, of(3, settings=dict(zip(names, numbers, strict=True))))
    assert peak(LLAMA, auto).peak_bytes < peak(LLAMA, of(3)).peak_bytes


def test_parameters_dealt_round_robin_touch_other_partitions():
    plan = of(2, 4, settings={"round_robin_gradients": True})
    assert step(plan) != step(of(2, 4))
    assert peak(LLAMA, plan).states_bytes == peak(LLAMA, of(2, 4)).states_bytes


def test_settings_are_checked_by_name_and_value():
    with pytest.raises(ValueError, match="settings of framework 'torch' have no 'overlap_comm'"):
        Plan(settings={"overlap_comm": True})
    with pytest.raises(ValueError, match="have no 'bucket'; it has reduce_bucket_size, "):
        of(2, settings={"bucket": 1})
    with pytest.raises(ValueError, match=r"reduce_bucket_size must be an integer from 1 to .* or"):
        of(2, settings={"reduce_bucket_size": 0})
    with pytest.raises(ValueError, match="overlap_comm must be one of False, True, got 'yes'"):
        of(2, settings={"overlap_comm": "yes"})
    assert of(2, settings={"reduce_bucket_size": 5e8}).settings == ()  # the default
    plan = of(2, settings={"reduce_bucket_size": 1e6})
    assert plan.settings == (("reduce_bucket_size", 1_000_000),)
    assert replace(plan) == plan
    for option in FRAMEWORKS["deepspeed"].settings.values():
        assert option.label
        assert option.help.endswith(".")
        assert option.source


# ---- ranks ----
def test_ranks_differ_and_the_highest_counts():
    for plan in (of(1, 4), of(2, 4), of(2, 64)):
        each = [peak(LLAMA, plan, rank=rank).peak_bytes for rank in range(plan.ranks)]
        assert len(set(each)) > 1
        assert peak(LLAMA, plan).peak_bytes == pytest.approx(max(each), rel=2e-3)
    with pytest.raises(ValueError, match="rank must be from 0 to 3, got 4"):
        peak(LLAMA, of(2, 4), rank=4)


def test_a_sweep_over_gpus_is_each_of_its_points():
    counts = [1, 2, 3, 8, 64, 1000]
    for stage in (1, 2, 3):
        swept = sum(peaks(LLAMA, of(stage), num_gpus=counts).values())
        single = [peak(LLAMA, of(stage, n)).peak_bytes for n in counts]
        assert swept.tolist() == pytest.approx(single, abs=8)


def test_a_layout_covers_every_parameter_once():
    elements = (70, 3, 11, 1, 40, 9)
    for groups in (((0, 1, 2, 3, 4, 5),), ((0, 2, 4), (1, 3, 5))):
        reductions = Reductions(elements, groups, ())
        for n in (1, 2, 3, 5):
            for dealt in (False, True):
                laid = layout(reductions, n, dealt)
                assert all(part * n >= sum(elements[i] for i in group)
                           for part, group in zip(laid.parts, groups, strict=True))  # fmt: skip
                held = [laid.touched(rank).sum() for rank in range(n)]
                assert sum(held) >= sum(elements)
                if len(groups) == 1:
                    assert held[laid.fullest()] == max(held)
    assert FULLEST < 0


# ---- the coordinator of ZeRO-3 ----
def coordinated(elements, order, **bounds):
    """Return the most that is gathered, and what is left, in elements."""
    found = Coordinator(elements, frozenset(), order, **bounds)
    for module in order:
        found.fetch(module)
        found.release(module)
    return found, max(found.highest, found.bytes) // 2


def test_a_coordinator_without_prefetch_holds_a_module():
    order = ((0,), (1,), (2,), (2,), (1,), (0,))
    found, most = coordinated((10, 20, 30), order, ahead=0, live=0, reuse=0)
    assert (most, found.bytes) == (30, 0)


def test_a_coordinator_with_room_keeps_all_to_the_backward_pass():
    order = ((0,), (1,), (2,), (2,), (1,), (0,))
    found, most = coordinated((10, 20, 30), order, ahead=10**3, live=10**3, reuse=0)
    assert most == 10 + 2 * (20 + 30)  # two are prefetched together, and copied out of a buffer
    assert (found.bytes, found.flying, found.whole) == (0, {}, set())


# ---- nothing is lost ----
MODELS = {
    "llama": replace(LLAMA, num_layers=3),
    "tied": replace(ARCHITECTURES["Llama-3.2-1B"], num_layers=3),
    "mixtral": replace(ARCHITECTURES["Mixtral-8x7B"], num_layers=2),
    "gpt2": replace(ARCHITECTURES["GPT-2"], num_layers=3),
}
SETTINGS = (
    {},
    {"overlap_comm": True},
    {"contiguous_gradients": False},
    {"reduce_scatter": False},
    {"grad_accum_dtype": "fp32"},
    {"round_robin_gradients": True, "param_groups": 2},
    {"reduce_bucket_size": 10**6, "stage3_max_live_parameters": 10**6},
    {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_step_ends_as_it_began(stage, model, settings):
    for options in (
        {},
        {"accumulation": 2},
        {"num_gpus": 1},
        {"checkpointing": "none"},
        {"loss_head": "fused"},
        {"lora_rank": 8, "lora_targets": "all", "accumulation": 2},
        {"offload": "optimizer"},
    ):
        try:
            plan = stack(f"deepspeed-zero{stage}", seq_length=512, settings=settings, **options)
            structure = structure_of(
                MODELS[model], plan, alone=plan.ranks == 1, single=True, chunks=3
            )
        except ValueError:
            continue
        assert structure.frozen == bool(plan.lora_rank)
        events = [e for s in walk(structure).segments[1:] for e in net(s.events, s.times)]
        assert net(events, 1) == [], options


# ---- cases that once failed ----
def test_a_step_that_ran_out_of_memory_in_the_optimizer_is_not_called_fitting():
    qwen = Architecture("Qwen1.5-7B", "qwen2", 32, 4096, 32, 32, 128, 11008, 151936)
    for model, length, card in (("Llama-2-7B", 1024, "V100 · 32 GB"), (qwen, 512, "A100 · 40 GB")):
        plan = stack("deepspeed-zero2", num_gpus=8, micro_batch=1, seq_length=length)
        s = simulate(architecture=model, plan=plan, zero_stage=2, gpu=card)
        assert s.grade == "uncertain"
        assert "peak in the optimizer step" in s.verdict


OPTIM = {
    "per_device_train_batch_size": 1, "bf16": True, "optim": "adamw_torch", "output_dir": "out",
    "deepspeed": {
        "zero_allow_untested_optimizer": True, "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8},
    },
}  # fmt: skip


def test_the_trainers_optimizer_counts_where_the_file_names_none():
    reading = read_configuration(json.loads(json.dumps(OPTIM)))
    assert reading.plan.optimizer == "adamw_foreach"
    assert dict(reading.plan.settings) == {"overlap_comm": True, "param_groups": 2}
    assert not reading.unsupported
    eight = read_configuration({**OPTIM, "optim": "paged_adamw_8bit"})
    assert "optim" in eight.unsupported
    named = {**OPTIM["deepspeed"], "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
    own = read_configuration({**OPTIM, "deepspeed": named})
    assert own.plan.optimizer == "adamw_foreach"
    assert "optim" in own.ignored


def test_every_setting_of_a_file_is_read():
    section = {
        "stage": 3, "reduce_bucket_size": "auto", "contiguous_gradients": False,
        "reduce_scatter": False, "sub_group_size": 1e8, "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 1e4, "stage3_max_live_parameters": 1e8,
        "stage3_max_reuse_distance": 0,
    }  # fmt: skip
    source = {
        "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {**section, "overlap_comm": True, "allgather_bucket_size": 2e8},
    }  # fmt: skip
    reading = read_configuration(source)
    assert not reading.unsupported
    expected = {**section, "grad_accum_dtype": "fp32"}
    del expected["stage"]
    assert dict(reading.plan.settings) == expected
    assert reading.ignored["zero_optimization.overlap_comm"] == "only for stages 1 and 2"
    for key in ("stage3_model_persistence_threshold", "stage3_module_granularity_threshold"):
        other = read_configuration({"bf16": {"enabled": True},
                                    "zero_optimization": {"stage": 3, key: 100}})  # fmt: skip
        assert f"zero_optimization.{key}" in other.unsupported


# ---- what random runs of the engine showed ----
def test_a_gradient_that_ranks_cannot_divide_is_copied():
    odd = replace(LLAMA, vocab_size=128_257)  # times 4096: a multiple of 4096 alone
    alone = {"reduce_bucket_size": 10**6, "stage3_max_live_parameters": 0}

    def above(gpus):
        plan = of(3, gpus, settings=alone)
        return backward(plan, odd) - peak(odd, plan).states_bytes

    size = 2 * odd.vocab_size * odd.hidden_dim
    assert above(3) - above(4) == pytest.approx(size, rel=0.02)


def test_without_a_contiguous_bucket_gradients_are_copied_all_the_same():
    scattered = {"contiguous_gradients": False}
    model = replace(LLAMA, vocab_size=1000)
    parts = backward(of(2, settings=scattered), model)
    whole = backward(of(2, settings={**scattered, "reduce_scatter": False}), model)
    assert parts == whole
