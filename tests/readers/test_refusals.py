"""What is no configuration, or has a bad value: one clear error."""

import errno
import json
import os
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.config import ConfigError, TrainingConfig
from trainmem.readers import Reading, read_configuration
from trainmem.readers.account import flatten
from trainmem.readers.read import LONG_KEY, MAX_BYTES

from .files import CONFIGS, EXPECTED


def nested(depth):
    """Return a list in a list, that deep."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


def dict_of(depth):
    """Return a mapping in a mapping, that deep."""
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


BASE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --bf16"
BAD = {
    "zero_optimization.stage: 4 is not allowed; must be a whole number from 0 to 3": {
        "zero_optimization": {"stage": 4}
    },
    "bf16.enabled: 'maybe' is not allowed; must be true or false": {
        "zero_optimization": {"stage": 1}, "bf16": {"enabled": "maybe"}
    },
    "train_batch_size: 100 is not allowed; must be a multiple of 24": {
        "train_batch_size": 100, "train_micro_batch_size_per_gpu": 3
    },
    "zero_optimization.offload_optimizer.device: 'gpu' is not allowed; must be one of none": {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}
    },
    "mixed_precision: 'int8' is not allowed; must be one of no, fp16, bf16, fp8": {
        "distributed_type": "FSDP", "mixed_precision": "int8"
    },
    "fsdp_config.fsdp_sharding_strategy: 'SHARDED' is not allowed; must be one of FULL_SHARD": {
        "distributed_type": "FSDP", "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_sharding_strategy": "SHARDED"},
    },
    "per_device_train_batch_size: 0 is not allowed; must be a whole number from 1 up": {
        "per_device_train_batch_size": 0
    },
    "per_device_train_batch_size: 100000 is not allowed; micro_batch must be an integer from 1": {
        "per_device_train_batch_size": 100_000
    },
    "fsdp: 'fully' is not allowed; must be true, full_shard": {
        "fsdp": "fully", "output_dir": "x"
    },
    "use_peft: False is not allowed; must be true": {"use_peft": False, "load_in_4bit": True},
    'deepspeed.gradient_accumulation_steps: 2 is not allowed; must be 4 or "auto"': {
        "output_dir": "x", "gradient_accumulation_steps": 4, "bf16": True,
        "deepspeed": {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2},
    },
    "activation_checkpoint.mode: 'some' is not allowed; must be one of none": {
        "activation_checkpoint": {"mode": "some"}
    },
    "activation_checkpoint.selective_ac_option: 'ops' is not allowed; must be 'op'": {
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "ops"}
    },
    "training.global_batch_size: 3 is not allowed; must be a multiple of": {
        "training": {"global_batch_size": 3, "local_batch_size": 2}
    },
    "compile.components: \\['optimizer'\\] is not allowed": {
        "compile": {"enable": True, "components": ["optimizer"]}, "training": {}
    },
    "--tensor-model-parallel-size: '\\$TP' is not allowed; must be a whole number from 1": (
        f"{BASE} --tensor-model-parallel-size '$TP'"
    ),
    "--bf16: None is not allowed; must be there": "--num-layers 4",
    "--hidden-dropout: '2' is not allowed; must be a number": f"{BASE} --hidden-dropout 2",
    "--recompute-granularity: 'most' is not allowed; must be one of full, selective": (
        f"{BASE} --recompute-granularity most"
    ),
    "--global-batch-size: 7 is not allowed; must be a multiple of": (
        f"--nproc-per-node 8 x.py {BASE} --global-batch-size 7"
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_a_bad_value_is_named(message):
    with pytest.raises(ConfigError, match=message):
        read_configuration(BAD[message])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "must be a mapping, text"),
        ("ds_config.json", "for a file, a pathlib.Path"),
        ("stage: 3\n", "must be JSON, TOML or Megatron's arguments"),
        ("{", "must be JSON"),
        ("[" * 100_000, "source"),
        ('{"a": ' * 100_000, "source"),
        ('{"bf16": 1, "bf16": 2}', "must be there once"),
        ({"colour": "red"}, "keys must be those of one format"),
        ({}, "keys must be those of one format"),
        ("{" + " " * MAX_BYTES, "must be at most 1 MiB"),
        ({"training": {3: 1}}, "keys must be strings"),
        (["8", "--bf16"], "must begin with an --argument"),
        ("--x 'open", "must be JSON, TOML"),
        (Path("config.yaml"), "yaml.safe_load"),
        (Path("nobody.json"), "source: 'nobody.json' .*can be read: No such file"),
        (Path("."), "can be read: Is a directory"),
        (Path("nul\0.json"), "can be read: embedded null"),
        ({"output_dir": b"x"}, "output_dir: b'x' is not allowed; must be a number, a switch"),
        ({"output_dir": np.zeros(2)}, "must be a number, a switch"),
        ({"fp16": Decimal("sNaN"), "seed": 1}, "fp16: .* must be a number, a switch"),
        ({"output_dir": nested(100_000)}, "output_dir: <list> is not allowed; .*ten levels"),
        ({"output_dir": [{"a": [[[[[[[[[[[[1]]]]]]]]]]]]}]}, "must not be nested deeper"),
        ({"training": dict_of(100_000)}, "must not be nested deeper"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, (str, Path)) else type(value).__name__,
)
def test_what_is_no_configuration_is_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        read_configuration(source)


@pytest.mark.parametrize(
    "text", [".".join(["a"] * 200_000) + "=1", "[" + ' . "b"' * 100_000 + "]", "x={a" + ".c" * 9**5]
)
def test_a_long_dotted_key_costs_no_time(text):
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"keys must not be nested deeper|must be JSON"):
        read_configuration(text)
    assert time.process_time() - start < 5  # the parser alone would take minutes


@pytest.mark.parametrize("text", ["a" * 10**6, "a " * 500_000, '"" ' * 300_000, "1." * 400_000])
def test_looking_for_long_keys_takes_no_time(text):
    start = time.process_time()
    LONG_KEY.search(text)
    assert time.process_time() - start < 2


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "secret.json"
    path.write_text("{}")

    def refused(*_args, **_options):  # as the system does, but for root, who reads everything
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(type(path), "open", refused)
    with pytest.raises(ConfigError, match="can be read: Permission denied"):
        read_configuration(path)


def test_large_and_binary_files_are_refused(tmp_path):
    path = tmp_path / "big.json"
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="at most 1 MiB"):
        read_configuration(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="UTF-8"):
        read_configuration(path)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_junk_values_give_an_answer_or_one_clear_error(data):
    name = data.draw(st.sampled_from([n for n in EXPECTED if n.endswith(".json")]))
    tree = json.loads((CONFIGS / name).read_text())
    branch = tree
    key = data.draw(st.sampled_from(sorted(branch)))
    while isinstance(branch[key], dict) and branch[key] and data.draw(st.booleans()):
        branch = branch[key]
        key = data.draw(st.sampled_from(sorted(branch)))
    branch[key] = data.draw(JUNK)
    try:
        reading = read_configuration(tree, format=EXPECTED[name][0])
    except ValueError:
        return
    assert isinstance(reading, Reading)
    books = [*reading.used, *reading.ignored, *reading.unsupported]
    assert sorted(books) == sorted(flatten(tree))
    assert isinstance(reading.training_config(), TrainingConfig)
