"""One memory among others: copies, links, observers, threads."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import traitlets

import trainmem.widget.traits
from trainmem.config import FIELDS, TrainingConfig
from trainmem.simulate_step import simulate
from trainmem.widget.traits import TrainingMemory

from .memory import OTHER, consistent

# -- copies


@pytest.mark.parametrize(
    "take", [copy.copy, copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))]
)
@pytest.mark.parametrize(
    "inputs",
    [
        {"num_gpus": 64, "gpu": "H200 · 141 GB"},
        {"gpu_memory_gb": 70.5, "zero_stage": 1},
        {"architecture": "Llama-3-8B", "gpu": "A100 · 80 GB", "plan": {"loss_head": "chunked"}},
    ],
)
def test_a_copy_has_the_inputs_and_a_life_of_its_own(take: Any, inputs: Any) -> None:
    memory = TrainingMemory(**inputs)
    seen: list[Any] = []
    memory.observe(seen.append, "num_gpus")
    other = take(memory)
    assert type(other) is TrainingMemory
    assert repr(other) == repr(memory)
    assert (other.gpu, other.plan, other.verdict) == (memory.gpu, memory.plan, memory.verdict)
    other.num_gpus = 16
    other.architecture = ""
    assert seen == []
    assert repr(memory) == repr(TrainingMemory(**inputs))
    if "architecture" in inputs:
        assert other.model_params_b == TrainingConfig().model_params_b  # what it had replaced


def test_a_copy_keeps_an_opened_architecture() -> None:
    memory = TrainingMemory()
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 4000}
    memory.open_config(config | {"n_positions": 512, "n_layer": 24, "n_embd": 1024}, "mine")
    other = copy.deepcopy(memory)
    assert (other.architecture, repr(other)) == ("mine", repr(memory))
    other.architecture = ""
    other.architecture = "mine"
    assert other.num_layers == 24


# -- traitlets' own tools


def test_held_notifications_lose_nothing_and_compute_once(calls: list[TrainingConfig]) -> None:
    memory = TrainingMemory()
    del calls[:]
    with memory.hold_trait_notifications():
        memory.gpu = "H200 · 141 GB"
        memory.num_gpus = 64
        memory.seq_length = 8192
    assert (memory.num_gpus, memory.seq_length, memory.gpu_memory_gb) == (64, 8192, 141.0)
    assert len(calls) == 1
    consistent(memory)
    with memory.hold_trait_notifications():
        memory.num_gpus = 128
        memory.update(zero_stage=1)
        memory.gpu_memory_gb = 50
    assert (memory.num_gpus, memory.zero_stage, memory.gpu) == (128, 1, "")
    consistent(memory)


def test_links_keep_two_models_in_step() -> None:
    one, two = TrainingMemory(), TrainingMemory()
    links = [traitlets.link((one, name), (two, name)) for name in [*FIELDS, "gpu"]]
    one.update(**OTHER)
    assert two.config == one.config
    two.gpu = "T4 · 16 GB"
    assert (one.gpu, one.gpu_memory_gb) == ("T4 · 16 GB", 16.0)
    consistent(one)
    consistent(two)
    for each in links:
        each.unlink()
    one.num_gpus = 5
    assert two.num_gpus == 64

    class Dial(traitlets.HasTraits):
        turns = traitlets.Int(4)
        shown = traitlets.Float()

    dial = Dial()
    traitlets.link((dial, "turns"), (one, "num_gpus"))
    traitlets.dlink((one, "per_gpu_total_gb"), (dial, "shown"))
    assert one.num_gpus == 4
    dial.turns = 32
    assert one.num_gpus == 32
    assert dial.shown == one.per_gpu_total_gb


def test_an_observer_may_change_another_input() -> None:
    memory = TrainingMemory()

    def at_least_eight(change: dict[str, int]) -> None:
        if change["new"] < 8:
            memory.num_gpus = 8

    memory.observe(at_least_eight, "num_gpus")
    memory.update(num_gpus=2, seq_length=1024)
    assert (memory.num_gpus, memory.seq_length) == (8, 1024)
    consistent(memory)


def test_threads_lose_no_change() -> None:
    memory = TrainingMemory()
    start = threading.Barrier(3)
    failures: list[BaseException] = []

    def drive(name: str, values: range) -> None:
        try:
            start.wait()
            for value in values:
                setattr(memory, name, value)
                assert getattr(memory, name) == value  # nobody else sets it
        except BaseException as error:
            failures.append(error)

    jobs = [
        ("num_gpus", range(1, 150)),
        ("seq_length", range(100, 250)),
        ("micro_batch", range(1, 150)),
    ]
    threads = [threading.Thread(target=drive, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert (memory.num_gpus, memory.seq_length, memory.micro_batch) == (149, 249, 149)
    consistent(memory)


def test_a_change_waits_for_the_one_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set in the midst of another thread's change, a value would be published over."""
    memory = TrainingMemory()
    computing, go_on = threading.Event(), threading.Event()

    def slow(config: TrainingConfig, **options: object) -> object:
        if config.num_gpus == 64 and not go_on.is_set():
            computing.set()
            assert go_on.wait(30)
        return simulate(config, **options)

    monkeypatch.setattr(trainmem.widget.traits, "simulate", slow)
    first = threading.Thread(target=setattr, args=(memory, "num_gpus", 64))
    second = threading.Thread(target=setattr, args=(memory, "seq_length", 8192))
    first.start()
    assert computing.wait(30)
    second.start()
    second.join(0.3)
    assert second.is_alive()
    assert memory.seq_length == 4096
    go_on.set()
    for thread in (first, second):
        thread.join(30)
    assert (memory.num_gpus, memory.seq_length) == (64, 8192)
    consistent(memory)
