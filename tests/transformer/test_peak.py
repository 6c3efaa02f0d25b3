"""Properties of the answer: sums, broadcasting, monotony, timeline, structure."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmem import simulate
from trainmem.transformer import (
    COMPONENTS,
    KINDS,
    OPTIONS,
    Architecture,
    Plan,
    architecture,
    grade,
    levels,
    peak,
    peaks,
    timeline,
)
from trainmem.transformer.engine.dims import BS
from trainmem.transformer.engine.tape import TEMPORARY, Tape, net
from trainmem.transformer.micro import spread
from trainmem.transformer.peak import peak_bytes
from trainmem.transformer.program import structure_of
from trainmem.transformer.step import walk

LLAMA = architecture("Llama-3-8B")
SMALL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


#: Options of a step that transformers itself runs, and its loss heads.
TRACED = (
    "sharding",
    "precision",
    "optimizer",
    "attention",
    "no_sync",
    "keep_gradients",
    "wrapping",
    "reduce_dtype",
    "dropout",
)
HEADS = (
    "transformers", "chunked", "fused", "held", "returned", "compiled", "pieces", "parallel",
    "in_place",
)  # fmt: skip


@st.composite
def models(draw):
    family = draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "gpt2"]))
    kv = draw(st.sampled_from([1, 2, 4]))
    heads = kv if family == "gpt2" else kv * draw(st.sampled_from([1, 2, 3]))
    head_dim = draw(st.sampled_from([32, 50, 64, 80, 100, 128]))
    hidden = heads * head_dim if family != "qwen3" else draw(st.integers(1, 40)) * 32
    return Architecture(
        name="drawn",
        family=family,
        num_layers=draw(st.integers(1, 9)),
        hidden_dim=hidden,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=head_dim,
        ffn_dim=8 * draw(st.integers(4, 400)),
        vocab_size=draw(st.integers(500, 60_000)),
        tie_embeddings=draw(st.booleans()),
        max_positions=4096,
    )


@st.composite
def cases(draw):
    """A model and a plan that go together: choices that would conflict are mended."""
    model = draw(models())
    choices = {name: [v for v, _ in x.choices] for name, x in OPTIONS.items() if x.choices}
    o = {name: draw(st.sampled_from(values)) for name, values in choices.items() if name in TRACED}
    for name, values in {
        "checkpointing": ("none", "full", "every_2nd"),
        "loss_head": HEADS,
    }.items():
        o[name] = draw(st.sampled_from(values))
    o["num_gpus"] = draw(st.sampled_from([1, 2, 3, 8, 48, 1000]))
    o["micro_batch"] = draw(st.integers(1, 5))
    o["seq_length"] = draw(st.integers(1, 4000))
    o["accumulation"] = draw(st.sampled_from([1, 2, 3, 7]))
    o["loss_chunk"] = draw(st.sampled_from([100, 1024, 5000]))
    if o["sharding"] in ("none", "ddp"):
        o["sharding"] = "none" if o["num_gpus"] == 1 else "ddp"
        o["wrapping"] = "layers"
        o["no_sync"] &= o["sharding"] == "ddp"
        o["precision"] = o["precision"].replace("mixed", "amp")
    elif o["optimizer"] == "adam8bit":
        o["optimizer"] = "sgd"
    if o["precision"] != "mixed":
        o["reduce_dtype"] = "float32"
    if o["precision"] == "bf16_master":
        o["optimizer"] = "adamw"
    if model.tie_embeddings or model.family == "gpt2" or o["loss_head"] == "pieces":
        o["wrapping"] = "layers"
    if draw(st.booleans()):
        o["lora_rank"] = draw(st.sampled_from([1, 16]))
        o["lora_targets"] = draw(st.sampled_from(["qv", "all", "all_head"]))
        o["precision"] = o["precision"].replace("bf16_master", "bf16")
        if o["loss_head"] in ("chunked", "fused"):
            o["lora_targets"] = "qv"
    return model, Plan(**o)


@SMALL
@given(cases())
def test_answer_is_consistent(case):
    model, plan = case
    result = peak(model, plan)
    assert tuple(result.bytes_by_kind) == KINDS
    assert min(result.bytes_by_kind.values()) >= 0
    assert sum(result.bytes_by_kind.values()) == result.peak_bytes
    assert max(result.phase_bytes.values()) == result.phase_bytes[result.phase] == result.peak_bytes
    assert result.states_bytes <= result.peak_bytes
    assert result.explanation.startswith("The peak comes in ")
    if plan.accumulation == 1:
        assert "other" not in result.phase_bytes


@SMALL
@given(cases())
def test_timeline_agrees_with_the_peak(case):
    model, plan = case
    result = peak(model, plan)
    line = timeline(model, plan)
    assert line.total_bytes.max() == line.total_bytes[line.peak_index] == result.peak_bytes
    assert np.array_equal(line.bytes_by_kind.sum(axis=0), line.total_bytes)
    assert line.bytes_by_kind.min() >= 0
    assert len(line.labels) == len(line.phases) == len(line.boundaries) - 1
    assert line.boundaries[-1] == line.total_bytes.size
    # A step ends as it began, so steps can follow each other.
    assert line.total_bytes[-1] == line.total_bytes[line.boundaries[1] - 1]


@SMALL
@given(cases())
def test_broadcast_equals_scalar(case):
    model, plan = case
    lengths, batches = [plan.seq_length, 77, 2048], [plan.micro_batch, 3]
    parts = peaks(model, plan, seq_length=lengths, micro_batch=np.array(batches)[:, None])
    assert tuple(parts) == COMPONENTS
    total = sum(parts.values())
    assert total.shape == (2, 3)
    for (i, b), (j, s) in itertools.product(enumerate(batches), enumerate(lengths)):
        assert total[i, j] == peak(model, replace(plan, micro_batch=b, seq_length=s)).peak_bytes


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_broadcast_over_gpus_equals_scalar(sharding):
    plan, gpus = Plan(sharding=sharding, seq_length=512), [1, 2, 7, 48, 1000]
    total = sum(peaks(LLAMA, plan, num_gpus=gpus).values())
    assert list(total) == [peak(LLAMA, replace(plan, num_gpus=n)).peak_bytes for n in gpus]


def test_replicas_are_alone_on_one_gpu():
    alone = Plan(sharding="none", num_gpus=1, precision="amp")
    shared = replace(alone, sharding="ddp", num_gpus=4)
    for plan in (alone, shared):
        total = sum(peaks(LLAMA, plan, num_gpus=[1, 4]).values())
        assert list(total) == [peak(LLAMA, p).peak_bytes for p in (alone, shared)]


@pytest.mark.parametrize("options", [{}, {"checkpointing": "none"}, {"attention": "eager"}])
def test_longer_and_bigger_need_more(options):
    plan = Plan(**options)
    for name in ("seq_length", "micro_batch"):
        total = sum(peaks(LLAMA, plan, **{name: np.arange(1, 65) * 64}).values())
        assert np.all(np.diff(total) > 0)


def test_stages_and_checkpointing_save_memory():
    by_stage = [peak(LLAMA, Plan(sharding=f"zero{k}")).peak_bytes for k in (1, 2, 3)]
    assert by_stage == sorted(by_stage, reverse=True)
    none = peak(LLAMA, Plan(checkpointing="none")).peak_bytes
    assert none > peak(LLAMA, Plan()).peak_bytes
    full, fused = (peak(LLAMA, Plan(loss_head=h)) for h in ("transformers", "fused"))
    assert fused.phase_bytes["loss"] < full.phase_bytes["loss"]


def test_middle_layers_stand_for_each_other():
    """A deep model's collapsed layers give the same peak as all of them written out."""
    for layers in (1, 2, 3, 4, 5, 6, 9):
        model = replace(LLAMA, num_layers=layers)
        for options in ({}, {"checkpointing": "none"}, {"sharding": "zero2"}, {"accumulation": 3}):
            plan = Plan(seq_length=512, **options)
            assert timeline(model, plan).total_bytes.max() == peak(model, plan).peak_bytes


def test_spread_covers_every_layer_once():
    for n in range(1, 12):
        covered_layers = [i for low, high in spread(n, 2, 2) for i in range(low, high + 1)]
        assert covered_layers == list(range(1, n + 1))


def test_accumulation_repeats_itself():
    for options in ({}, {"no_sync": True}, {"sharding": "zero1"}):
        sizes = [peak(LLAMA, Plan(accumulation=n, **options)).peak_bytes for n in (3, 4, 64)]
        assert len(set(sizes)) == 1


def test_every_free_has_its_birth():
    """Nothing is left over or freed twice, kind by kind, at the end of a step."""
    for options in ({}, {"sharding": "zero1", "accumulation": 3}, {"loss_head": "chunked"}):
        writer = walk(structure_of(LLAMA, Plan(**options), alone=False, single=False, chunks=3))
        before = writer.segments[0].events
        rest = [e for s in writer.segments[1:] for e in net(s.events, s.times)]
        assert net(rest, 1) == []
        assert all(event.change > 0 for event in before)


def test_freeing_twice_is_an_error():
    tape = Tape()
    block = tape.alloc(BS, 2, TEMPORARY)
    tape.drop(block)
    with pytest.raises(AssertionError, match="freed twice"):
        tape.drop(block)


def test_lengths_the_model_cannot_take():
    gpt2 = architecture("GPT-2")
    with pytest.raises(ValueError, match="seq_length 2048 exceeds the 1024 positions of GPT-2"):
        peak(gpt2, Plan(seq_length=2048))
    with pytest.raises(ValueError, match="seq_length 2048 exceeds"):
        peaks(gpt2, Plan(), seq_length=[512, 2048], limit_length=True)
    windowed = replace(architecture("Mistral-7B"), sliding_window=4096)
    with pytest.raises(ValueError, match="reaches the sliding window"):
        peak(windowed, Plan(seq_length=4096))
    assert peak(windowed, Plan(seq_length=4095)).peak_bytes


def test_peaks_alone_are_the_sums_of_their_parts_at_any_length():
    """A sweep goes beyond what a model takes, and so does what is asked at one of its points."""
    gpt2, lengths = architecture("GPT-2"), [512, 1024, 2048]
    parts = peaks(gpt2, Plan(), seq_length=lengths)
    assert peak_bytes(gpt2, Plan(), seq_length=lengths).tolist() == sum(parts.values()).tolist()
    s = simulate(architecture="GPT-2", seq_length=512)
    config = s.config.replace(seq_length=2048)
    assert s.at(seq_length=2048) == s.model.components(config).total / 1e9


@pytest.mark.parametrize("bad", [0, np.nan, 2_000_000])
def test_bad_arrays_name_the_field(bad):
    with pytest.raises(ValueError, match="num_gpus must be from 1 to 1000000"):
        peaks(LLAMA, Plan(), num_gpus=[8, bad])


def test_uncovered_combinations_say_so():
    with pytest.raises(ValueError, match="dropout is covered with kernels 'transformers'"):
        peak(LLAMA, Plan(dropout=True, kernels="torchtitan"))
    with pytest.raises(ValueError, match="calls the head once a piece"):
        peak(LLAMA, Plan(loss_head="pieces", wrapping="split"))
    with pytest.raises(ValueError, match="wrapping 'split' needs"):
        peak(architecture("GPT-2"), Plan(wrapping="split", seq_length=512))


def test_levels_nest_and_grades_follow_the_card():
    allocated = 60 * 2**30
    for plan in (Plan(), Plan(sharding="none", num_gpus=1, precision="amp")):
        inner, reserved, card = levels(allocated, plan)
        assert (inner.name, reserved.name, card.name) == ("allocated", "reserved", "card")
        assert inner.low_bytes < allocated < inner.high_bytes
        assert allocated <= reserved.low_bytes < card.low_bytes
        assert reserved.high_bytes < card.high_bytes
        assert all(level.source and level.label for level in (inner, reserved, card))
    assert grade(allocated, 79.1) == "fits"
    assert grade(allocated, 70) == "uncertain"
    assert grade(allocated, 60) == "uncertain"
    assert grade(allocated, 59.9) == "does not fit"
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="usable_gib must be a positive number"):
            grade(allocated, bad)
