"""The table of fields: what it accepts, what it refuses, and how it says so."""

from __future__ import annotations

import math
import pickle
from contextlib import suppress
from dataclasses import FrozenInstanceError, fields
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import configs
from trainmem import FIELDS, GPUS, PRESETS, ConfigError, TrainingConfig, preset
from trainmem.config import json_schema
from trainmem.words import describe, grouped

INTS = [name for name, field in FIELDS.items() if field.kind == "int"]


def test_the_defaults_are_the_published_request(reference):
    assert TrainingConfig().to_dict() == reference["inputs"]
    assert list(TrainingConfig().to_dict()) == list(reference["inputs"]) == list(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_values_have_the_published_type(name, reference):
    published = type(reference["inputs"][name])
    for value in FIELDS[name].choices or FIELDS[name].bounds:
        assert type(getattr(TrainingConfig(**{name: value}), name)) is published


BOUNDS = {
    "model_params_b": (0.001, 100_000),
    "num_gpus": (1, 1_000_000),
    "gpu_memory_gb": (0.1, 100_000),
    "micro_batch": (1, 65_536),
    "seq_length": (1, 2**24),
    "num_layers": (1, 10_000),
    "hidden_dim": (1, 2**20),
    "precision_bits": (8, 32),
    "zero_stage": (0, 3),
    "grad_ckpt": (0, 1),
}


@pytest.mark.parametrize("name", FIELDS)
def test_bounds_are_accepted_and_nothing_beyond(name):
    low, high = BOUNDS[name]
    assert FIELDS[name].validate(low) == low
    assert FIELDS[name].validate(high) == high
    for beyond in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf)):
        with pytest.raises(ConfigError):
            FIELDS[name].validate(beyond)


@pytest.mark.parametrize("name", ["num_gpus", "seq_length", "model_params_b", "gpu_memory_gb"])
@pytest.mark.parametrize(
    "value",
    [
        8,
        8.0,
        Fraction(8),
        np.int8(8),
        np.uint8(8),
        np.int64(8),
        np.uint64(8),
        np.float16(8),
        np.float32(8),
        np.float64(8),
        np.longdouble(8),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_whole_numbers_of_any_type_are_accepted(name, value):
    result = FIELDS[name].validate(value)
    assert result == 8
    assert type(result) is (int if name in INTS else float)


BAD = [
    None,
    "8",
    "",
    "many",
    b"8",
    [],
    [8],
    (8,),
    {"value": 8},
    8 + 0j,
    Decimal(8),
    object(),
    float,
    math.nan,
    math.inf,
    -math.inf,
    np.float16("inf"),
    np.float16("nan"),
    np.float32("inf"),
    np.float64("nan"),
    np.longdouble("inf"),
    np.timedelta64(8, "s"),
    np.datetime64("2024-01-01"),
    np.str_("8"),
    np.array(8),
    np.array([8]),
    np.array([8, 9]),
    np.ma.masked,
    -1,
    -8.0,
    10**30,
    10**400,
    -(10**400),
    10**6000,  # beyond what repr() writes
    1e308,
    np.float32(3e38),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", BAD, ids=lambda value: describe(value).partition(" at 0x")[0])
def test_bad_values_name_the_field_the_value_and_what_is_allowed(name, value):
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(**{name: value})
    message = str(caught.value)
    assert message == f"{name}: {describe(value)} is not allowed; {FIELDS[name].allowed}"
    assert caught.value.field == name
    assert caught.value.value is value
    assert "\n" not in message
    assert len(message) < 250


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "grad_ckpt"])
@pytest.mark.parametrize("value", [True, False, np.True_, np.False_], ids=repr)
def test_a_boolean_is_not_a_number(name, value):
    with pytest.raises(ConfigError, match=rf"^{name}: .*(True|False).* is not allowed"):
        TrainingConfig(**{name: value})


@pytest.mark.parametrize("value", [True, 1, 1.0, np.True_, np.int8(1), np.float16(1)], ids=repr)
def test_the_switch_takes_booleans(value):
    config = TrainingConfig(grad_ckpt=value)
    assert config.grad_ckpt == 1
    assert type(config.grad_ckpt) is int
    off = TrainingConfig(grad_ckpt=type(value)(0))
    assert (off.grad_ckpt, type(off.grad_ckpt)) == (0, int)


MESSAGES = {
    ("model_params_b", 0): "0 is not allowed; must be a number from 0.001 to 100 000 "
    "(10⁹ parameters)",
    ("num_gpus", 0): "0 is not allowed; must be a whole number from 1 to 1 000 000",
    ("num_gpus", 8.5): "8.5 is not allowed; must be a whole number from 1 to 1 000 000",
    ("gpu_memory_gb", 0.05): "0.05 is not allowed; must be a number from 0.1 to 100 000 "
    "(10⁹ bytes)",
    ("micro_batch", 65_537): "65537 is not allowed; must be a whole number from 1 to 65 536 "
    "(sequences)",
    ("seq_length", "4k"): "'4k' is not allowed; must be a whole number from 1 to 16 777 216 "
    "(tokens)",
    ("num_layers", True): "True is not allowed; must be a whole number from 1 to 10 000",
    ("hidden_dim", None): "None is not allowed; must be a whole number from 1 to 1 048 576",
    ("precision_bits", 12): "12 is not allowed; must be 8, 16 or 32",
    ("precision_bits", 16.5): "16.5 is not allowed; must be 8, 16 or 32",
    ("zero_stage", 4): "4 is not allowed; must be 0, 1, 2 or 3",
    ("zero_stage", 1.5): "1.5 is not allowed; must be 0, 1, 2 or 3",
    ("grad_ckpt", 2): "2 is not allowed; must be 0 or 1",
    ("grad_ckpt", "on"): "'on' is not allowed; must be 0 or 1",
}


@pytest.mark.parametrize(("given", "message"), MESSAGES.items(), ids=str)
def test_messages(given, message):
    name, value = given
    with pytest.raises(ConfigError) as caught:
        TrainingConfig.from_mapping({name: value})
    assert str(caught.value) == f"{name}: {message}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("num_gpu", "num_gpus"), ("zero_stages", "zero_stage"), ("seq_len", "seq_length")],
)
def test_an_unknown_field_gets_the_nearest_known_one(name, hint):
    for call in (
        lambda: TrainingConfig.from_mapping({name: 1}),
        lambda: TrainingConfig().replace(**{name: 1}),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        message = str(caught.value)
        assert message.startswith(f"unknown field: '{name}' is not allowed; must be one of ")
        assert message.endswith(f"(did you mean {hint}?)")
        assert all(known in message for known in FIELDS)


@pytest.mark.parametrize("name", ["colour", "", 7, None, ("num_gpus",), "x" * 10_000], ids=describe)
def test_an_unknown_field_with_nothing_near(name):
    with pytest.raises(ConfigError, match=r"^unknown field: ") as caught:
        TrainingConfig.from_mapping({name: 1})
    assert "did you mean" not in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.from_type(object))
def test_any_object_is_a_number_or_a_config_error(value):
    for field in FIELDS.values():
        with suppress(ConfigError):
            result = field.validate(value)
            assert result == (float(value) if field.kind == "float" else value)
            assert type(result) is (int if field.kind == "int" else float)


def test_a_value_whose_repr_fails_is_still_reported():
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no")

    with pytest.raises(ConfigError, match=r"^num_gpus: <Hostile> is not allowed"):
        TrainingConfig(num_gpus=Hostile())


def test_errors_survive_pickling():
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(num_gpus="x")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.field, copy.value, copy.allowed) == (
        str(caught.value),
        "num_gpus",
        "x",
        FIELDS["num_gpus"].allowed,
    )


@given(configs())
def test_configs_round_trip_and_compare_by_value(config):
    assert TrainingConfig.from_mapping(config.to_dict()) == config
    assert hash(TrainingConfig(**config.to_dict())) == hash(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.replace() == config


def test_configs_are_frozen():
    with pytest.raises(FrozenInstanceError):
        TrainingConfig().num_gpus = 9


def test_replace_leaves_the_original():
    config = TrainingConfig()
    assert config.replace(num_gpus=64.0).num_gpus == 64
    assert config == TrainingConfig()
    with pytest.raises(ConfigError, match=r"^num_gpus: 0 is"):
        config.replace(num_gpus=0)


def test_presets_are_the_published_three():
    assert [tuple(p.config.to_dict().values()) for p in PRESETS] == [
        (8, 8, 80, 4, 4096, 32, 4096, 16, 3, 1),
        (70, 64, 80, 1, 8192, 80, 8192, 16, 3, 1),
        (405, 512, 80, 1, 8192, 126, 16384, 16, 3, 1),
    ]
    for p in PRESETS:
        assert preset(p.name) == p.config
    assert preset("Llama-3-70B") == PRESETS[1].config


@pytest.mark.parametrize("name", ["Llama-3", "", "llama", None, 8], ids=repr)
def test_an_unclear_preset_lists_them_all(name):
    with pytest.raises(ConfigError, match=r"^preset: ") as caught:
        preset(name)
    assert all(p.name in str(caught.value) for p in PRESETS)


def test_gpus_rise_and_hold_less_than_they_are_sold_as():
    nominal = [gpu.nominal_gb for gpu in GPUS]
    assert nominal == sorted(nominal)
    assert len({(gpu.name, gpu.nominal_gb) for gpu in GPUS}) == len(GPUS)
    for gpu in GPUS:
        FIELDS["gpu_memory_gb"].validate(gpu.nominal_gb)
        assert 0.9 < gpu.usable_gib / gpu.nominal_gb < 1


@pytest.mark.parametrize("name", FIELDS)
def test_slider_positions_rise_are_valid_and_hold_the_powers_of_two(name):
    field = FIELDS[name]
    positions = field.slider_values()
    assert positions == sorted(set(positions))
    assert [field.validate(value) for value in positions] == positions
    assert positions[0] <= field.default <= positions[-1]
    if field.choices:
        assert positions == list(field.choices)
    else:
        low, high = field.slider
        assert (positions[0], positions[-1]) == (low, high)
        if field.scale == "log":
            octaves = round(math.log2(high / low))
            assert {low * 2**i for i in range(octaves + 1)} <= set(positions)
        else:
            assert positions == list(range(low, high + 1))


@pytest.mark.parametrize("name", FIELDS)
def test_the_schema_agrees_with_validation(name):
    schema = json_schema()
    assert list(schema["properties"]) == list(FIELDS)
    assert schema["additionalProperties"] is False
    entry = schema["properties"][name]
    assert entry["default"] == FIELDS[name].default
    kind = "integer" if name in INTS else "number"
    assert entry["type"] in (kind, [kind, "boolean"])  # the switch takes true and false
    allowed = entry.get("enum") or [entry["minimum"], entry["maximum"]]
    for value in allowed:
        assert FIELDS[name].validate(value) == value
    with pytest.raises(ConfigError):
        FIELDS[name].validate(max(allowed) + 1)


def test_the_dataclass_repeats_the_table():
    assert {f.name: f.default for f in fields(TrainingConfig)} == {
        name: field.default for name, field in FIELDS.items()
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.001, "0.001"), (8.0, "8"), (4096, "4096"), (10_000, "10 000"), (16_777_216, "16 777 216")],
)
def test_grouped(value, text):
    assert grouped(value) == text


@pytest.mark.parametrize(
    ("name", "value", "near"),
    [
        ("num_gpus", 64, [72, 60]),
        ("num_gpus", 65, [72, 64]),
        ("num_gpus", 1, [2]),
        ("zero_stage", 3, [2]),
        ("num_layers", 32, [33, 31]),
    ],
)
def test_neighbours_are_one_slider_position_away(name, value, near):
    assert FIELDS[name].neighbours(value) == near
