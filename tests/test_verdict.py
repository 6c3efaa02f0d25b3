"""The sentences: a table of whole ones, and rules of truth that hold for any request."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strategies import configs, everyday
from trainmem import TrainingConfig, simulate
from trainmem.reduced import REDUCED
from trainmem.verdict import MOST_GPUS, PUBLISHED, STAGE_WORDS
from trainmem.widget.words import panel

# Read by a person, sentence by sentence, before it was written down.
TABLE = json.loads((Path(__file__).parent / "data" / "verdicts.json").read_text())
CASES = st.one_of(everyday(), configs())


@pytest.mark.parametrize("row", TABLE, ids=[row["case"] for row in TABLE])
def test_whole_sentences(row):
    s = simulate(**row["inputs"])
    assert s.verdict == row["verdict"]
    assert s.banner == row["banner"]


def test_the_table_holds_every_combination():
    outcomes = set()
    for row in TABLE:
        s = simulate(**row["inputs"])
        outcome = "fits" if s.fits else "short" if s.min_gpus_to_fit else "none"
        dominates = s.verdict.split("-dominated")[0]
        outcomes.add((s.zero_stage, s.checkpointing, dominates, outcome))
    every = set(
        product(range(4), [True, False], ["model-state", "activation"], ["fits", "short", "none"])
    )
    # Stage 0 shares nothing: what is short there fits at no count.
    assert outcomes == {case for case in every if case[0] > 0 or case[3] != "short"}


def test_the_published_sentence(reference):
    assert simulate().verdict == reference["outputs"]["verdict"]
    assert PUBLISHED in simulate().verdict


def test_states_that_equal_the_activations_dominate():
    s = simulate(model_params_b=0.033, num_gpus=1, micro_batch=4, seq_length=1000, hidden_dim=1000)
    assert s.components.states == s.components.activations == 528e6
    assert s.verdict.startswith("model-state-dominated -- ")
    assert "Model-state-dominated: " in s.banner
    assert panel(s)["dominates"] == {"what": "model states", "share": "50 %", "when": ""}
    longer = simulate(s.config, seq_length=1001)
    assert longer.verdict.startswith("activation-dominated -- ")
    assert panel(longer)["dominates"]["what"] == "activations"


def total(config, **changes):
    """Bytes per GPU of a changed request."""
    return REDUCED.components(config.replace(**changes)).total


def gb(text):
    """Read '1.5 GB' or '10 000.0 GB' back, with what rounding may have taken or added."""
    if text == "less than 0.001 GB":
        return 0.0, 1e6
    value = float(text.removesuffix(" GB").replace(" ", ""))
    return (value - 0.051) * 1e9 if value >= 0.05 else value * 0.94e9, (value + 0.051) * 1e9


SIZE = r"(\d[\d ]*(?:\.\d+)?(?:e-\d+)? GB|less than 0\.001 GB)"


def check_size(text, size):
    low, high = gb(text)
    assert low * (1 - 1e-12) <= size <= high * (1 + 1e-12)  # the last bit of a huge one


def check_truth(config, s, text):
    """Check all that a sentence says against the model."""
    stage, gpus = config.zero_stage, config.num_gpus
    need = s.components.total

    # Advice that can't be followed.
    advice = text.replace("not more GPUs", "")
    if stage == 0:
        assert "more GPUs" not in advice
        assert "GPUs would make it fit" not in text
    if stage == 3:
        assert "higher" not in text
    if gpus == MOST_GPUS:
        assert "more GPUs" not in advice
    if config.grad_ckpt:
        assert "checkpointing" not in text.replace("not checkpointing", "")
    if config.micro_batch == 1:
        assert "smaller micro batch" not in text
    if config.seq_length == 1:
        assert "shorter sequence" not in text

    # Advice that frees memory.
    if "more GPUs" in advice:
        assert total(config, num_gpus=min(2 * gpus, MOST_GPUS)) < need
    if "higher ZeRO stage" in text:
        assert total(config, zero_stage=stage + 1) < need
    if "ZeRO stage 1 or higher" in text:
        count = gpus if gpus > 1 else 2
        assert total(config, zero_stage=1, num_gpus=count) < need
    if re.search(r"checkpointing(, a | or a | is what)", text):
        assert total(config, grad_ckpt=1) < need
    if "smaller micro batch" in text:
        assert total(config, micro_batch=config.micro_batch - 1) < need
    if "shorter sequence" in text:
        assert total(config, seq_length=config.seq_length - 1) < need

    # Advice against.
    if "not more GPUs" in text:
        assert total(config, num_gpus=MOST_GPUS) >= 0.9 * need
    if "not checkpointing" in text:
        assert config.grad_ckpt == 1

    # Numbers.
    if found := re.search(rf"checkpointing would free {SIZE}", text):
        check_size(found[1], need - total(config, grad_ckpt=1))
    if found := re.search(r"at least ([\d ]+)\)|([\d ]+) GPUs would make it fit", text):
        assert int((found[1] or found[2]).replace(" ", "")) == s.min_gpus_to_fit > gpus
    if found := re.search(rf"activations alone \({SIZE}\) exceed capacity", text):
        check_size(found[1], s.components.activations)
        assert s.components.activations > config.gpu_memory_gb * 1e9
    if found := re.search(rf"leaves whole \({SIZE}\) and the activations exceed", text):
        whole = s.components.weights + (s.components.gradients if stage == 1 else 0)
        check_size(found[1], whole)
        assert whole + s.components.activations > config.gpu_memory_gb * 1e9


def check_dominates(s, name):
    states = s.components.states >= s.components.activations
    assert name.lower() == ("model-state-dominated" if states else "activation-dominated")


@given(CASES)
@example(TrainingConfig(zero_stage=0, num_gpus=1))
@example(TrainingConfig(num_layers=1, grad_ckpt=0, model_params_b=0.1))
def test_the_verdict_is_true(config):
    s = simulate(config)
    head, why, *frees, stage = re.split(r" -- |; ", s.verdict)
    assert stage == STAGE_WORDS[config.zero_stage]
    check_dominates(s, head)
    assert " is what frees memory here" in frees[0]

    published = s.fits and config.zero_stage == 3 and head.startswith("model-state")
    assert (frees == [PUBLISHED]) is published
    if not published:
        check_truth(config, s, "; ".join(frees))

    over = re.fullmatch(rf"([a-z ]+) dominate(?:, {SIZE} over capacity)?", why)
    assert (over[2] is None) is s.fits
    if not s.fits:
        check_size(over[2], s.components.total - config.gpu_memory_gb * 1e9)
    sizes = {
        "weights": s.components.weights,
        "gradients": s.components.gradients,
        "optimizer states": s.components.optimizer,
    }
    if head.startswith("activation"):
        assert over[1] == "activations"
    else:
        named = over[1].split(" and ")
        largest = sorted(sizes.values(), reverse=True)[:2]
        assert [sizes[name] for name in named] == largest

    assert ("no GPU count fits" in s.verdict) is (s.min_gpus_to_fit is None)


@given(CASES)
def test_the_banner_is_true(config):
    s = simulate(config)
    found = re.fullmatch(
        rf"{SIZE} (of headroom|short)\. "
        r"(Model-state-dominated|Activation-dominated)(?:: |, but even the )(.+)\.",
        s.banner[0].lower() + s.banner[1:],
    )
    assert found, s.banner
    check_size(found[1], abs(config.gpu_memory_gb * 1e9 - s.components.total))
    assert (found[2] == "of headroom") is s.fits
    check_dominates(s, found[3])
    check_truth(config, s, found[4])
    little = s.components.total < 0.2 * config.gpu_memory_gb * 1e9
    assert ("nothing has to be freed" in s.banner) is little
    if "but even the activations alone" in s.banner:
        assert found[3] == "Model-state-dominated"
    assert ("no number of GPUs fits" in s.banner) is (s.min_gpus_to_fit is None)
    if share := re.search(r"^(.+) take (\d+) %", found[4]):
        parts = {
            "activations": s.components.activations,
            "weights": s.components.weights,
            "gradients": s.components.gradients,
            "optimizer states": s.components.optimizer,
        }
        taken = sum(parts[name] for name in share[1].split(" and ")) / s.components.total
        assert int(share[2]) == pytest.approx(100 * taken, abs=0.51)


@given(CASES)
def test_why_no_count_fits(config):
    s = simulate(config)
    if s.min_gpus_to_fit is not None:
        assert s.min_gpus_reason is None
        return
    assert s.min_gpus_reason in s.verdict
    capacity = config.gpu_memory_gb * 1e9
    if s.min_gpus_reason == "stage 0 shards nothing":
        assert config.zero_stage == 0
        assert s.components.activations <= capacity
    elif s.min_gpus_reason.startswith("it would take more than 1 000 000 GPUs"):
        assert total(config, num_gpus=MOST_GPUS) > capacity
        whole = s.components.weights * (config.zero_stage < 3)
        whole += s.components.gradients * (config.zero_stage < 2)
        assert config.zero_stage > 0
        assert whole + s.components.activations <= capacity
    else:
        check_truth(config, s, s.min_gpus_reason)
