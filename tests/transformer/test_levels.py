"""From allocated bytes to the card: what lies on top, interval by interval, and the grades."""

from math import nextafter

import pytest

from trainmem.transformer import FRAMEWORKS, Framework, Plan, add, grade, levels, remove, stack
from trainmem.transformer.levels import ALLOCATED, RESERVED, Level, reserving, trust

GIB, GB = 2**30, 10**9
NEED = 40 * GIB
ALONE = Plan(sharding="none", num_gpus=1, precision="amp")


def allocated_factors(plan):
    """Return how far the allocated interval reaches below and above the need."""
    level = levels(NEED, plan)[0]
    return level.low_bytes / NEED, level.high_bytes / NEED


def on_the_card(plan):
    """Return what the card adds to what is reserved: the least and the most."""
    _, reserved, card = levels(NEED, plan, NEED)
    return card.low_bytes - reserved.low_bytes, card.high_bytes - reserved.high_bytes


@pytest.mark.parametrize(
    ("options", "communicators"),
    [
        ({}, 1),
        ({"sharding": "ddp", "precision": "bf16", "wrapping": "layers"}, 1),
        ({"num_gpus": 1}, 0),
        ({"tp": 2}, 2),
        ({"tp": 8}, 1),  # nothing is left for data parallelism
        ({"pp": 2, "accumulation": 2}, 2),
        ({"tp": 2, "pp": 2, "accumulation": 2}, 3),
        ({"cp": 2}, 2),
        ({"cp": 8}, 2),  # the ranks of cp reduce gradients too
        ({"ep": 2}, 2),
        ({"num_gpus": 32, "tp": 2, "pp": 2, "cp": 2, "ep": 2, "accumulation": 2}, 5),
    ],
)
def test_the_card_adds_the_context_and_each_communicator(options, communicators):
    """A context of 0.5 to 1.4 GiB, and 0.4 to 0.7 GB a communicator."""
    plan = stack("torchtitan", **options)
    assert on_the_card(plan) == pytest.approx(
        (0.5 * GIB + communicators * 0.4 * GB, 1.4 * GIB + communicators * 0.7 * GB)
    )
    card = levels(NEED, plan)[2]
    assert ("NCCL" in card.label) == ("NCCL" in card.source) == (communicators > 0)


def test_what_is_reserved_is_never_less_than_what_is_allocated():
    """Where the pools, summed, seem to need less, the allocated interval is the floor."""
    plan = Plan()
    for pools in (0.5 * NEED, 0.9 * NEED, NEED, 1.02 * NEED):
        allocated, reserved, _ = levels(NEED, plan, pools)
        assert reserved.low_bytes == allocated.low_bytes
        assert reserved.low_bytes <= reserved.expected_bytes <= reserved.high_bytes
        assert reserved.high_bytes == pytest.approx(max(1.12 * pools, allocated.low_bytes))
    # And where they need more, the pools say.
    _, reserved, _ = levels(NEED, plan, 1.2 * NEED)
    assert reserved.low_bytes == pytest.approx(0.90 * 1.2 * NEED)
    assert reserved.expected_bytes == 1.2 * NEED


def test_the_likeliest_is_what_was_computed_else_the_middle():
    allocated, reserved, card = levels(NEED, ALONE)
    assert allocated.expected_bytes == NEED
    for level in (reserved, card):
        assert level.expected_bytes == (level.low_bytes + level.high_bytes) / 2
    assert Level("card", 2.0, 6.0, "", "").expected_bytes == 4
    assert Level("card", 2.0, 6.0, "", "", 5.0).expected_bytes == 5


def test_deepspeed_may_reserve_five_gib_more():
    _, reserved, card = levels(NEED, stack("deepspeed-zero2"))
    assert reserved.low_bytes == NEED
    assert reserved.high_bytes == pytest.approx(1.05 * NEED + 5 * GIB)
    assert card.high_bytes - reserved.high_bytes == pytest.approx(1.4 * GIB + 0.7 * GB)
    # It may, but is not likely to.
    assert reserved.expected_bytes == pytest.approx(1.025 * NEED)
    # Nobody else does.
    assert levels(NEED, stack("torch.compile"))[1].high_bytes == pytest.approx(1.35 * NEED)


@pytest.mark.parametrize(
    ("plan", "known", "how"),
    [
        (ALONE, "known", "one GPU"),
        (Plan(sharding="ddp", precision="amp"), "known", "replicated"),
        (Plan(), "known", "pools"),
        (Plan(varying_lengths=True), "known", "varying lengths"),
        (stack("torchtitan"), "known", "pools"),
        (stack("torchtitan", tp=2), "parallel", "parallel pools"),
        (stack("torchtitan", pp=2, accumulation=2), "parallel", "parallel pools"),
        (stack("torchtitan-compile", tp=2), "parallel", "parallel pools"),
        (stack("transformers+liger"), "unverified", "pools"),
        (stack("llm.c"), "unverified", "one stream"),
        (Plan(ep=2), "unverified", "pools"),
        (stack("megatron"), "known", "one stream"),
        (stack("megatron", varying_lengths=True), "known", "one stream"),
        (stack("megatron", tp=2, pp=2, accumulation=2), "known", "one stream"),
        (stack("deepspeed-zero3"), "known", "deepspeed"),
        (Plan(lora_rank=8, quantization="nf4", sharding="none", num_gpus=1, precision="bf16"),
         "qlora", "one GPU"),
    ],
)  # fmt: skip
def test_what_is_known_of_a_stack_sets_its_intervals(plan, known, how):
    assert (trust(plan), reserving(plan, pools=True)) == (known, how)
    assert allocated_factors(plan) == (ALLOCATED[known].low, ALLOCATED[known].high)
    allocated, reserved, _ = levels(NEED, plan, 2 * NEED)
    base = 2 * NEED if "pools" in how else NEED
    assert reserved.low_bytes == max(base * RESERVED[how].low, allocated.low_bytes)
    slack = 5 * GIB if how == "deepspeed" else 0
    assert reserved.high_bytes == base * RESERVED[how].high + slack
    assert (allocated.source, reserved.source) == (ALLOCATED[known].source, RESERVED[how].source)
    assert how in reserved.label


def test_shards_without_their_pools_keep_the_wider_interval():
    _, reserved, _ = levels(NEED, Plan())
    assert (reserved.low_bytes, reserved.high_bytes) == (NEED, pytest.approx(1.35 * NEED))


def test_a_grade_ends_where_the_card_does():
    """Below 80 % of the card a step fits, up to all of it nobody can tell."""
    assert grade(0, 10) == "fits"
    assert grade(nextafter(8 * GIB, 0), 10) == "fits"
    assert grade(8 * GIB, 10) == "uncertain"
    assert grade(10 * GIB, 10) == "uncertain"
    assert grade(nextafter(10 * GIB, 11 * GIB), 10) == "does not fit"


class Wary(Framework):
    """A framework of which something is not counted."""

    name = label = "wary"
    fits_below = 0.7


def test_a_framework_may_fit_below_another_share():
    seven = 0.7 * 10 * GIB
    add(Wary())
    try:
        assert grade(nextafter(seven, 0), 10, framework="wary") == "fits"
        assert grade(seven, 10, framework="wary") == "uncertain"
        assert grade(10 * GIB, 10, framework="wary") == "uncertain"
    finally:
        remove(FRAMEWORKS["wary"])
    assert grade(seven, 10, framework="megatron") == "fits"


def test_a_card_level_above_the_card_settles_what_is_open():
    """With its low end, and only where allocated bytes alone leave it open."""
    card = 10 * GIB
    assert grade(9 * GIB, 10, card_low_bytes=card) == "uncertain"
    assert grade(9 * GIB, 10, card_low_bytes=nextafter(card, 2 * card)) == "does not fit"
    assert grade(7.9 * GIB, 10, card_low_bytes=2 * card) == "fits"
