"""`TrainingMemory`: inputs, outputs and errors as traits, without a browser."""

from __future__ import annotations

import copy
import pickle
import threading
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import traitlets

import trainmem.cards
import trainmem.simulation
import trainmem.widget.traits
from trainmem.cards import GPUS, PRESETS
from trainmem.config import FIELDS, ConfigError, TrainingConfig
from trainmem.outputs import OUTPUT_NAMES
from trainmem.reduced import ReducedModel
from trainmem.request import check_plan
from trainmem.simulate_step import simulate
from trainmem.transformer import Plan, TransformerModel, stack
from trainmem.widget.traits import TrainingMemory

BEYOND = ("headroom_gb", "longest_sequence", "largest_micro_batch", "min_gpus_reason")
OUTPUTS = [name for name in OUTPUT_NAMES if name != "zero_stage"] + list(BEYOND)
OTHER = {
    "model_params_b": 70.6,
    "num_gpus": 64,
    "gpu_memory_gb": 141.0,
    "micro_batch": 2,
    "seq_length": 8192,
    "num_layers": 80,
    "hidden_dim": 8192,
    "precision_bits": 32.0,
    "zero_stage": 1,
    "grad_ckpt": 0,
}
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip
BAD = [
    ("num_gpus", 0),
    ("num_gpus", 2.5),
    ("num_gpus", "64"),
    ("num_gpus", True),
    ("num_gpus", None),
    ("model_params_b", float("nan")),
    ("model_params_b", float("inf")),
    ("model_params_b", -1),
    ("gpu_memory_gb", 1e9),
    ("seq_length", 10**400),
    ("zero_stage", 4),
    ("precision_bits", 12),
    ("grad_ckpt", 2),
    ("hidden_dim", [4096]),
    ("gpu", "no such card"),
    ("gpu", 5),
    ("gpu", None),
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[TrainingConfig]:
    """Record every simulation that the model computes."""
    made: list[TrainingConfig] = []

    def counted(config: TrainingConfig, **options: object) -> object:
        made.append(config)
        return simulate(config, **options)

    monkeypatch.setattr(trainmem.widget.traits, "simulate", counted)
    return made


def heard(memory: traitlets.HasTraits, names: object = traitlets.All) -> list[tuple[str, object]]:
    """Record changes as they are announced."""
    log: list[tuple[str, object]] = []
    memory.observe(lambda change: log.append((change["name"], change["new"])), names)
    return log


def state(memory: TrainingMemory) -> dict[str, object]:
    return {name: getattr(memory, name) for name in [*FIELDS, "gpu", *OUTPUTS, "simulation"]}


def consistent(memory: TrainingMemory) -> None:
    """Check that every output belongs to the inputs."""
    answer = simulate(memory.config)
    assert memory.simulation.config == memory.config
    for name in OUTPUTS:
        assert getattr(memory, name) == getattr(answer, name), name
    card = {gpu.label: gpu.nominal_gb for gpu in GPUS}
    assert memory.gpu == "" or card[memory.gpu] == memory.gpu_memory_gb


# -- starting


def test_starts_at_the_reference_request() -> None:
    memory = TrainingMemory()
    assert memory.config == TrainingConfig()
    assert memory.gpu == PRESETS[0].gpu
    assert memory.error == ""
    consistent(memory)


def test_every_input_is_a_keyword_beside_a_config() -> None:
    memory = TrainingMemory(TrainingConfig(num_gpus=2), **OTHER)
    assert memory.config == TrainingConfig(**OTHER)
    assert TrainingMemory(TrainingConfig(num_gpus=2), seq_length=512).num_gpus == 2
    consistent(memory)


def test_unknown_keywords_and_other_configs_are_type_errors() -> None:
    with pytest.raises(TypeError, match=r"TrainingMemory\(\).*'num_gpu'.*did you mean num_gpus"):
        TrainingMemory(num_gpu=8)
    with pytest.raises(TypeError, match="'fits'"):
        TrainingMemory(fits=True)
    with pytest.raises(TypeError, match="must be a TrainingConfig, not dict"):
        TrainingMemory({"num_gpus": 8})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_the_constructor_refuses_bad_values(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .* is not allowed; must be "):
        TrainingMemory(**{name: value})


def test_a_card_brings_its_memory_unless_a_size_is_given() -> None:
    assert TrainingMemory(gpu="H200 · 141 GB").gpu_memory_gb == 141.0
    typed = TrainingMemory(gpu="H200 · 141 GB", gpu_memory_gb=100)
    assert (typed.gpu, typed.gpu_memory_gb) == ("", 100.0)
    both = TrainingMemory(gpu="H200 · 141 GB", gpu_memory_gb=141)
    assert (both.gpu, both.gpu_memory_gb) == ("H200 · 141 GB", 141.0)


# -- inputs and outputs


@pytest.mark.parametrize("name", FIELDS)
def test_each_input_is_observed_and_computes_once(name: str, calls: list[TrainingConfig]) -> None:
    memory = TrainingMemory()
    log = heard(memory, name)
    del calls[:]
    setattr(memory, name, OTHER[name])
    assert log == [(name, OTHER[name])]
    assert len(calls) == 1
    assert getattr(memory.config, name) == OTHER[name]
    consistent(memory)
    setattr(memory, name, OTHER[name])
    assert len(calls) == 1  # nothing has changed


def test_each_output_is_observed() -> None:
    memory = TrainingMemory()
    log = heard(memory)
    memory.update(**OTHER)
    memory.update(**TrainingConfig(zero_stage=0, gpu_memory_gb=8, precision_bits=8).to_dict())
    assert {name for name, _ in log} >= {*OUTPUTS, *FIELDS, "gpu", "simulation"}
    consistent(memory)


def test_observers_see_one_state() -> None:
    memory = TrainingMemory()
    seen = []

    def look(_change: object) -> None:
        consistent(memory)
        seen.append(memory.num_gpus)

    memory.observe(look)
    memory.update(num_gpus=64, seq_length=8192)
    memory.zero_stage = 1
    assert set(seen) == {64}


def test_update_changes_all_at_once_and_computes_once(calls: list[TrainingConfig]) -> None:
    memory = TrainingMemory()
    log = heard(memory)
    del calls[:]
    memory.update(**OTHER)
    assert calls == [TrainingConfig(**OTHER)]
    assert len([name for name, _ in log if name == "simulation"]) == 1
    assert len({name for name, _ in log}) == len(log)  # each trait once
    consistent(memory)


def test_update_is_all_or_nothing() -> None:
    memory = TrainingMemory()
    before = state(memory)
    log = heard(memory)
    for changes in (
        {"num_gpus": 64, "zero_stage": 4},
        {"num_gpus": 64, "nonsense": 1},
        {"num_gpus": 64, "gpu": "nonsense"},
        {"self": 1},
        {"config": 1},
    ):
        with pytest.raises(ConfigError):
            memory.update(**changes)
        assert state(memory) == before
    assert {name for name, _ in log} == {"error"}


def test_integral_and_numpy_numbers_become_plain_ones() -> None:
    memory = TrainingMemory()
    memory.num_gpus = np.float32(16)
    memory.grad_ckpt = False
    memory.model_params_b = np.int64(70)
    assert [type(v) for v in (memory.num_gpus, memory.grad_ckpt)] == [int, int]
    assert type(memory.model_params_b) is float
    assert (memory.num_gpus, memory.grad_ckpt, memory.model_params_b) == (16, 0, 70.0)


@pytest.mark.parametrize("name", [*OUTPUTS, "simulation", "error"])
def test_outputs_are_read_only(name: str) -> None:
    memory = TrainingMemory()
    with pytest.raises(traitlets.TraitError, match="read-only"):
        setattr(memory, name, getattr(memory, name))


def test_help_and_kind_of_every_trait() -> None:
    for name, trait in TrainingMemory.class_traits().items():
        assert trait.help, name
        if name not in ("simulation",):
            assert trait.metadata["sync"], name
        if name in OUTPUTS:
            assert trait.metadata["kind"] == "output"
            assert trait.read_only
        elif name in FIELDS:
            assert trait.metadata["kind"] == "input"


# -- refusing


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_raises_shows_and_leaves_the_last_state(name: str, value: object) -> None:
    memory = TrainingMemory(num_gpus=16)
    before = state(memory)
    with pytest.raises(ConfigError) as refused:
        setattr(memory, name, value)
    assert memory.error == str(refused.value)
    assert memory.error.startswith(f"{name}: ")
    assert state(memory) == before
    memory.num_gpus = 32
    assert memory.error == ""
    consistent(memory)


def test_setting_the_present_value_clears_the_error() -> None:
    memory = TrainingMemory()
    for again in (lambda: setattr(memory, "num_gpus", 8), lambda: memory.update(num_gpus=8)):
        with suppress(ConfigError):
            memory.num_gpus = 0
        assert memory.error
        again()
        assert memory.error == ""


# -- cards


def test_a_card_and_a_size_follow_each_other() -> None:
    memory = TrainingMemory()
    memory.gpu = "H200 · 141 GB"
    assert memory.gpu_memory_gb == 141.0
    memory.gpu_memory_gb = 100
    assert memory.gpu == ""
    memory.gpu = "T4 · 16 GB"
    assert memory.gpu_memory_gb == 16.0
    memory.gpu = ""  # a size to be typed; until then the same
    assert memory.gpu_memory_gb == 16.0
    memory.num_gpus = 9
    assert memory.gpu == ""
    memory.update(gpu="H200 · 141 GB", gpu_memory_gb=99)
    assert (memory.gpu, memory.gpu_memory_gb) == ("", 99.0)
    consistent(memory)


# -- foreign values


def nested() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


class Hostile:
    """Fails at whatever is asked of it."""

    __hash__ = None  # type: ignore[assignment]

    def fail(self, *_: object) -> Any:
        raise RuntimeError("hostile")

    __eq__ = __repr__ = __str__ = __index__ = __bool__ = __float__ = fail


FOREIGN = {
    "nested": nested(),
    "sNaN": Decimal("sNaN"),
    "array": np.zeros(3),
    "word": np.array("x"),
    "numpy bool": np.bool_(True),
    "NaN": float("nan"),
    "hostile": Hostile(),
    "bytes": b"x",
    "surrogate": "\ud800",
    "huge": 10**5000,
    "long": "x" * 5_000_000,
    "complex": 1j,
}


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["no_sync", "optimizer", "tp", "sharding", "num_gpus"])
def test_a_foreign_value_of_an_option_is_one_short_error(name: str, value: Any) -> None:
    memory = TrainingMemory(architecture="Llama-3-8B")
    before = dict(memory.plan)
    for ask in (
        lambda: Plan(**{name: value}),
        lambda: check_plan({name: value}),
        lambda: simulate(architecture="Llama-3-8B", plan={name: value}),
        lambda: setattr(memory, "plan", {name: value}),
        lambda: memory.update(plan={name: value}),
    ):
        with pytest.raises(ValueError, match=f"{name} must be ") as caught:
            ask()
        assert len(str(caught.value)) < 400
    assert memory.plan == before
    assert name in memory.error


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_value_elsewhere_is_a_config_error(value: Any) -> None:
    memory = TrainingMemory()
    for ask in (
        lambda: simulate(gpu=value),
        lambda: simulate(architecture="Llama-3-8B", gpu=value),
        lambda: simulate(architecture=value),
        lambda: simulate(architecture="Llama-3-8B", plan=value),
        lambda: setattr(memory, "gpu", value),
        lambda: setattr(memory, "architecture", value),
        lambda: setattr(memory, "plan", value),
        lambda: trainmem.cards.preset(value),
        lambda: simulate(seq_length=value),
    ):
        with pytest.raises(ConfigError):
            ask()
    consistent(memory)


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


def test_a_bad_value_while_held_keeps_the_good_ones() -> None:
    memory = TrainingMemory()
    with memory.hold_trait_notifications():
        memory.num_gpus = 64
        with pytest.raises(ConfigError):
            memory.zero_stage = 4
    assert (memory.num_gpus, memory.zero_stage) == (64, 3)
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


def test_an_observer_that_raises_leaves_a_consistent_state() -> None:
    memory = TrainingMemory()

    def fail(_change: object) -> None:
        raise RuntimeError("mine")

    memory.observe(fail, "num_gpus")
    with pytest.raises(RuntimeError, match="mine"):
        memory.num_gpus = 64
    assert memory.num_gpus == 64
    consistent(memory)


@pytest.mark.parametrize("way", ["update", "assign", "held", "open", "architecture"])
@pytest.mark.parametrize("breaks", ["simulate", "fewest", "limits"])
def test_whatever_raises_in_a_change_leaves_the_state_before_it(
    way: str, breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = TrainingMemory(num_gpus=16)
    before, log = state(memory), heard(memory, [*FIELDS, *OUTPUTS, "gpu", "simulation"])

    def fail(*_args: object, **_options: object) -> object:
        raise ZeroDivisionError("a model's own")

    places, name = {
        "simulate": ([trainmem.widget.traits], "simulate"),
        "fewest": ([ReducedModel, TransformerModel], "smallest_num_gpus"),
        "limits": ([trainmem.simulation], "limit"),  # only where the answer is shown
    }[breaks]

    def held() -> None:
        with memory.hold_trait_notifications():
            memory.num_gpus = 64
            memory.gpu = "H200 · 141 GB"

    change = {
        "update": lambda: memory.update(num_gpus=64, seq_length=8192),
        "assign": lambda: setattr(memory, "num_gpus", 64),
        "held": held,
        "open": lambda: memory.open_config(CONFIG),
        "architecture": lambda: setattr(memory, "architecture", "Llama-3-8B"),
    }[way]
    with monkeypatch.context() as broken:
        for place in places:
            broken.setattr(place, name, fail)
        with pytest.raises(ZeroDivisionError):
            change()
    assert memory.error == "ZeroDivisionError: a model's own"
    assert state(memory) == before
    assert (memory.architecture, memory.plan) == ("", {})
    assert all(new == before[name] for name, new in log)  # nobody keeps another
    consistent(memory)
    memory.num_gpus = 32
    assert memory.error == ""
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


# -- in words


def test_repr_is_one_line_with_what_differs() -> None:
    assert repr(TrainingMemory()) == "<TrainingMemory 24.9 / 80 GB fits>"
    text = repr(TrainingMemory(**OTHER))
    assert "\n" not in text
    assert "does not fit: model_params_b=70.6, num_gpus=64" in text
    for length, grade in ((4096, "fits"), (7500, "uncertain"), (8192, "does not fit")):
        memory = TrainingMemory(architecture="Llama-3-8B", seq_length=length)
        assert memory.grade == grade
        assert f" GB {grade}: architecture='Llama-3-8B'" in repr(memory)


def test_a_whole_plan_brings_the_inputs_that_it_says():
    plan = stack("deepspeed-zero2", num_gpus=16, seq_length=2048)
    memory = TrainingMemory(architecture="Llama-3-8B", plan=plan)
    assert memory.simulation.plan == plan
    assert (memory.zero_stage, memory.num_gpus, memory.seq_length) == (2, 16, 2048)
    memory.update(plan=stack("transformers"), num_gpus=4)
    assert memory.simulation.plan == stack("transformers", num_gpus=4)
    with pytest.raises(ConfigError, match="takes a whole Plan"):
        memory.plan = plan
    assert memory.simulation.plan == stack("transformers", num_gpus=4)
