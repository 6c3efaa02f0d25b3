"""The three limits: what is returned fits, and its neighbour does not."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steps import H100, OFFERED, llama
from strategies import configs, everyday
from trainmem import ARCHITECTURES, FIELDS, Fix, TrainingConfig, simulate
from trainmem.limits import Limit
from trainmem.memory_model import MemoryModel
from trainmem.reduced import REDUCED, Components, ReducedModel

MOST = {name: FIELDS[name].bounds[1] for name in ("num_gpus", "seq_length", "micro_batch")}
CASES = st.one_of(everyday(), configs())


def fits(config, **changes):
    changed = config.replace(**changes)
    return REDUCED.components(changed).total <= REDUCED.capacity_bytes(changed)


@given(CASES)
@example(TrainingConfig())
@example(TrainingConfig(zero_stage=0))
@example(TrainingConfig(seq_length=65_536))
def test_minimum_gpus_is_minimal(config):
    count = REDUCED.smallest_num_gpus(config)
    if count is None:
        assert not fits(config, num_gpus=MOST["num_gpus"])
    else:
        assert type(count) is int
        assert fits(config, num_gpus=count)
        assert count == 1 or not fits(config, num_gpus=count - 1)


@given(CASES, st.sampled_from(["seq_length", "micro_batch"]))
def test_the_largest_that_fits_is_maximal(config, name):
    value = REDUCED.largest_that_fits(config, name)
    if value is None:
        assert not fits(config, **{name: 1})
    else:
        assert type(value) is int
        assert fits(config, **{name: value})
        assert value == MOST[name] or not fits(config, **{name: value + 1})


@given(everyday())
def test_the_limits_do_not_depend_on_what_they_replace(config):
    assert REDUCED.smallest_num_gpus(config) == REDUCED.smallest_num_gpus(
        config.replace(num_gpus=77)
    )
    for name in ("seq_length", "micro_batch"):
        assert REDUCED.largest_that_fits(config, name) == REDUCED.largest_that_fits(
            config.replace(**{name: 77}), name
        )


@pytest.mark.parametrize(
    ("changes", "gpus", "sequence", "batch"),
    [
        ({}, 2, 29_592, 28),
        ({"zero_stage": 2}, 3, 23_119, 22),
        ({"zero_stage": 0}, None, None, None),
        ({"zero_stage": 0, "gpu_memory_gb": 141}, 1, 6011, 5),
        ({"seq_length": 65_536}, None, 29_592, 1),
        ({"model_params_b": 0.001, "gpu_memory_gb": 1e5}, 1, MOST["seq_length"], 45_155),
    ],
    ids=str,
)
def test_known_limits(changes, gpus, sequence, batch):
    s = simulate(**changes)
    assert s.min_gpus_to_fit == gpus
    assert s.longest_sequence == sequence
    assert s.largest_micro_batch == batch


def test_values_by_hand():
    """Solve the reference request in rationals: 128/N + 8.858 ≤ 80 and 16 + a·s ≤ 80."""
    per_token = Fraction(132 * 4 * 4096)  # (2·32 + 68)·b·h bytes
    assert 128 * 10**9 / (80 * 10**9 - per_token * 4096) <= 2
    assert (64 * 10**9) // per_token == simulate().longest_sequence
    per_sequence = Fraction(132 * 4096 * 4096)
    assert (64 * 10**9) // per_sequence == simulate().largest_micro_batch


class Counting(MemoryModel):
    """A memory model that counts how often it is asked, and is affine in nothing."""

    description = "a staircase"

    def __init__(self):
        self.calls = 0

    def components(self, config, **axes):
        self.calls += 1
        gpus = axes.get("num_gpus", config.num_gpus)
        tokens = axes.get("seq_length", config.seq_length)
        blocks = -(-tokens // 256)  # memory comes in blocks, and with the square of the length
        return Components(1e12 / gpus**0.5, 0.0, 0.0, 1e3 * blocks**2)

    def capacity_bytes(self, config):
        return config.gpu_memory_gb * 1e9

    def bytes_per_param(self, config):
        return 16.0


@pytest.mark.parametrize("capacity", [2, 5, 80, 300, 2000])
def test_limits_hold_for_models_that_are_not_affine(capacity):
    model = Counting()
    config = TrainingConfig(gpu_memory_gb=capacity)

    def holds(**axes):
        return model.components(config, **axes).total <= capacity * 1e9

    count = model.smallest_num_gpus(config)
    assert holds(num_gpus=count)
    assert count == 1 or not holds(num_gpus=count - 1)
    config = config.replace(num_gpus=1_000_000)
    length = model.largest_that_fits(config, "seq_length")
    assert holds(seq_length=length, num_gpus=1_000_000)
    assert not holds(seq_length=length + 1, num_gpus=1_000_000)


class Full(MemoryModel):
    """A memory model whose card is exactly full at given inputs."""

    description = "a full card"

    def __init__(self, **axes):
        self.full = self.components(TrainingConfig(), **axes).total

    def components(self, config, num_gpus=8, seq_length=4096, micro_batch=4):
        return Components(1e12 / num_gpus, 0.0, 0.0, 1e3 * seq_length * micro_batch)

    def capacity_bytes(self, _config):
        return self.full

    def bytes_per_param(self, _config):
        return 16.0


@pytest.mark.parametrize("name", MOST)
@pytest.mark.parametrize("place", [0, 0.001, 1])
def test_exactly_full_fits(name, place):
    """At both ends of what the input takes, and between them."""
    value = max(1, int(place * MOST[name]))
    model = Full(**{name: value})
    if name == "num_gpus":
        assert model.smallest_num_gpus(TrainingConfig()) == value
    else:
        assert model.largest_that_fits(TrainingConfig(), name) == value


@given(everyday())
def test_no_limit_is_found_by_a_scan(config):
    calls = 0

    class Counted(ReducedModel):
        total_by_gpus = MemoryModel.total_by_gpus

        def components(self, config, **axes):
            nonlocal calls
            calls += 1
            return super().components(config, **axes)

    Counted().smallest_num_gpus(config)
    Counted().largest_that_fits(config, "seq_length")
    Counted().largest_that_fits(config, "micro_batch")
    assert calls <= 3 * 6  # two ends, three near the guess; the model is affine, so few more


@given(config=configs(), num_gpus=st.integers(1, 1_000_000))
def test_the_total_by_gpus_is_that_of_the_components(config, num_gpus):
    total = REDUCED.total_by_gpus(config)(num_gpus)
    assert total == REDUCED.components(config, num_gpus=num_gpus).total


NEAR_CAPACITY = (
    {},
    {"gpu": "A100 · 40 GB", "micro_batch": 1},
    {"plan": {"loss_head": "fused"}},
    {"plan": {"loss_head": "chunked"}, "seq_length": 512},
    {"grad_ckpt": 0, "micro_batch": 1, "seq_length": 2048, "plan": {"attention": "eager"}},
)


@pytest.mark.parametrize("given", NEAR_CAPACITY)
@pytest.mark.parametrize("field", ["seq_length", "micro_batch"])
def test_limits_fit_and_the_next_value_does_not(given, field):
    s = llama(**given)
    most = s.longest_sequence if field == "seq_length" else s.largest_micro_batch
    capacity = s.gpu_capacity_gb
    assert s.at(**{field: most}) <= capacity < s.at(**{field: most + 1})


@pytest.mark.parametrize("given", NEAR_CAPACITY)
def test_fewest_gpus_fit_and_one_less_does_not(given):
    s = llama(**given)
    assert s.at(num_gpus=s.min_gpus_to_fit) <= s.gpu_capacity_gb
    if s.min_gpus_to_fit > 1:
        assert s.at(num_gpus=s.min_gpus_to_fit - 1) > s.gpu_capacity_gb


def test_padding_makes_a_million_gpus_worse_yet_the_fewest_is_found():
    s = llama()
    assert s.min_gpus_to_fit == 2
    assert s.at(num_gpus=1_000_000) > s.gpu_capacity_gb


def test_where_nothing_fits_the_reason_is_given():
    s = simulate(architecture="Llama-3-405B", gpu="T4 · 16 GB", seq_length=128, micro_batch=1)
    assert (s.min_gpus_to_fit, s.longest_sequence, s.largest_micro_batch) == (None, None, None)
    assert s.min_gpus_reason.startswith("what the GPUs don't share takes at least ")
    assert s.longest_sequence_reason == f"even one token needs {s.at(seq_length=1):.1f} GB"
    assert s.largest_micro_batch_reason.startswith("even one sequence needs ")
    assert llama(zero_stage=0).min_gpus_reason == "stage 0 shards nothing"


def test_lengths_end_where_the_positions_do_and_rotary_ones_do_not():
    gpt2 = simulate(architecture="GPT-2", gpu=H100)
    assert gpt2.longest_sequence == 1024
    assert gpt2.longest_sequence_reason == "GPT-2 takes at most 1024 positions"
    assert llama().longest_sequence > ARCHITECTURES["Llama-3-8B"].max_positions
    assert llama().longest_sequence_reason is None


@pytest.mark.parametrize("given", OFFERED)
def test_a_limit_says_how_sure_it_is_and_what_fits(given):
    s = llama(**given)
    for field in ("num_gpus", "seq_length", "micro_batch"):
        limit = s.limit(field)
        if limit.value is None:
            assert limit == Limit(None, "does not fit", None)
            continue
        at = s.after(Fix(field, limit.value, "", 0.0))
        assert (at.fits, at.grade) == (True, limit.grade)
        if limit.surely is None:
            continue
        assert s.after(Fix(field, limit.surely, "", 0.0)).grade == "fits"
        beyond = limit.surely + (-s.model.gpu_multiple if field == "num_gpus" else 1)
        if limit.surely != limit.value and beyond:
            assert s.after(Fix(field, beyond, "", 0.0)).grade != "fits"
