"""Configurations as people have them: every key of a file is accounted for, exactly once."""

import json
import tomllib
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.config import ConfigError
from trainmem.readers import FORMATS, read_configuration
from trainmem.readers.account import UNKNOWN, flatten
from trainmem.readers.megatron import parse
from trainmem.readers.read import _parse
from trainmem.transformer import OPTIONS, TransformerModel

from .files import CONFIGS, EXPECTED, TABLES, UNSUPPORTED, leaves


def test_every_sample_is_expected():
    assert {path.name for path in CONFIGS.iterdir()} == set(EXPECTED)
    assert {kind for kind, _ in EXPECTED.values()} == set(FORMATS)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_key_is_accounted_for_once(name):
    reading = read_configuration(CONFIGS / name)
    books = [set(reading.used), set(reading.ignored), set(reading.unsupported)]
    assert set.union(*books) == leaves(name)
    assert sum(map(len, books)) == len(leaves(name))
    assert all(text for book in (reading.used, reading.ignored, reading.unsupported)
               for text in book.values())  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_the_plan_is_what_the_file_says(name):
    kind, options = EXPECTED[name]
    reading = read_configuration(CONFIGS / name)
    assert reading.format == kind
    assert {key: getattr(reading.plan, key) for key in options} == options
    assert set(reading.unsupported) == UNSUPPORTED.get(name, set())


@pytest.mark.parametrize("name", EXPECTED)
def test_inputs_and_plan_agree(name):
    reading = read_configuration(CONFIGS / name)
    config = reading.training_config()
    assert {key: getattr(config, key) for key in reading.inputs} == dict(reading.inputs)
    assert set(reading.assumed) <= set(OPTIONS)
    text = str(reading)
    assert all(f"  {key}: " in text for key in leaves(name))


UNKNOWN_KEYS = {
    "deepspeed": ({"zero_optimization": {"stage": 3}, "my_key": 1}, "my_key"),
    "a deepspeed section": ({"zero_optimization": {"stage": 3, "mine": "auto"}},
                            "zero_optimization.mine"),
    "a sign of another too": ({"zero_optimization": {}, "train_batch_size": 8,
                               "optimizer": {"params": {"mine": 1}}}, "optimizer.params.mine"),
    "accelerate": ({"distributed_type": "FSDP", "mixed_precision": "bf16", "mine": False}, "mine"),
    "fsdp": ({"distributed_type": "FSDP", "mixed_precision": "bf16",
              "fsdp_config": {"fsdp_mine": 2}}, "fsdp_config.fsdp_mine"),
    "trainer": ({"output_dir": "x", "lora_rank": 8}, "lora_rank"),
    "a prefix of trainer's": ({"output_dir": "x", "save_activations": True}, "save_activations"),
    "torchtitan": ({"training": {"mine": 1}}, "training.mine"),
    "megatron": ("--num-layers 4 --bf16 --mine 4", "--mine"),
    "a prefix of megatron's": ("--bf16 --distributed-optimizer", "--distributed-optimizer"),
    "another": ("--bf16 --overlap-everything", "--overlap-everything"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN_KEYS)
def test_an_unknown_key_is_never_ignored(case):
    source, key = UNKNOWN_KEYS[case]
    assert read_configuration(source).unsupported[key] == UNKNOWN


def test_null_is_as_good_as_absent():
    assert read_configuration({"output_dir": "x", "mine": None}).ignored["mine"].startswith("null")


@pytest.mark.parametrize("table", TABLES)
def test_no_prefix_ignores_a_key(table):
    for key in " ".join(table.values()).split():
        whole = key.removesuffix(".*").removeprefix("*.")
        assert "*" not in whole, f"{key} may swallow a key that changes memory"


def test_numpys_scalars_are_numbers():
    reading = read_configuration({"output_dir": "x", "per_device_train_batch_size": np.int64(4)})
    assert reading.plan.micro_batch == 4


def test_what_is_read_can_be_simulated():
    reading = read_configuration(CONFIGS / "trainer_fsdp.json", num_gpus=4, seq_length=1024)
    model = TransformerModel(reading.architecture, reading.plan)
    config = reading.training_config()
    assert (config.num_gpus, config.seq_length) == (4, 1024)
    assert 10e9 < model.components(config).total < 200e9


def test_the_megatron_model_is_the_preset():
    model = read_configuration(CONFIGS / "megatron_llama3_70b.txt").architecture
    assert (model.family, model.num_layers, model.num_kv_heads) == ("llama", 80, 8)
    assert model.vocab_size == 128512  # padded to a multiple of 128 · tp
    mixtral = read_configuration(CONFIGS / "megatron_mixtral.txt").architecture
    assert (mixtral.family, mixtral.num_experts, mixtral.experts_per_token) == ("mixtral", 8, 2)


def test_given_options_win_and_the_key_says_so():
    reading = read_configuration(CONFIGS / "deepspeed_zero3.json", micro_batch=2, num_gpus=32,
                                 format="deepspeed")  # fmt: skip
    assert (reading.plan.micro_batch, reading.plan.num_gpus) == (2, 32)


def test_a_given_option_is_named_where_it_overrides():
    reading = read_configuration({"per_device_train_batch_size": 4, "bf16": True}, micro_batch=2)
    assert reading.plan.micro_batch == 2
    assert reading.ignored["per_device_train_batch_size"] == "overridden by micro_batch=2"
    assert reading.inputs["micro_batch"] == 2


def test_given_names_are_checked():
    with pytest.raises(TypeError, match="'gpus' is not an option of the plan"):
        read_configuration({"bf16": True, "fp16": False, "optim": "sgd"}, gpus=8)
    with pytest.raises(ValueError, match="num_gpus must be an integer"):
        read_configuration({"output_dir": "x"}, num_gpus=0)


def test_readings_are_frozen():
    reading = read_configuration({"output_dir": "x"})
    with pytest.raises(FrozenInstanceError):
        reading.format = "other"
    with pytest.raises(TypeError):
        reading.used["bf16"] = "?"


def test_the_format_can_be_named():
    with pytest.raises(ConfigError, match="format: 'nemo' is not allowed"):
        read_configuration({}, format="nemo")
    with pytest.raises(ConfigError, match="doesn't go with this kind of source"):
        read_configuration(["--bf16"], format="trainer")
    assert read_configuration({}, format="trainer").plan.micro_batch == 8


def test_the_sources_of_one_configuration_are_the_same():
    path = CONFIGS / "trainer_deepspeed.json"
    text = path.read_text()
    assert read_configuration(path) == read_configuration(text)
    assert read_configuration(text) == read_configuration(json.loads(text))
    words = _parse((CONFIGS / "megatron_mixtral.txt").read_text(), "megatron")
    assert read_configuration(words) == read_configuration(CONFIGS / "megatron_mixtral.txt")


def test_what_the_plan_refuses_is_unsupported_in_its_words():
    reading = read_configuration({"output_dir": "x", "torch_compile": True})  # fp32
    assert reading.plan.kernels == "transformers"
    assert reading.unsupported["torch_compile"].startswith("kernels 'compiled' need")


ARGUMENTS = parse(_parse((CONFIGS / "megatron_llama3_70b.txt").read_text(), "megatron"))


@settings(max_examples=60, deadline=None)
@given(names=st.sets(st.sampled_from(sorted(ARGUMENTS)), min_size=1))
def test_any_of_megatrons_arguments_are_accounted_for(names):
    words = ["--bf16"]
    for name in names - {"--bf16"}:
        values = ARGUMENTS[name]
        values = [] if values is True else [values] if isinstance(values, str) else values
        words += [name, *values]
    try:
        reading = read_configuration(words)
    except ValueError:
        return
    books = [*reading.used, *reading.ignored, *reading.unsupported]
    missing = {"--attention-dropout"} & set(reading.unsupported) - names  # 0.1 where it isn't there
    assert sorted(books) == sorted(names | {"--bf16"} | missing)


@pytest.mark.parametrize("section", ["training", "parallelism", "compile", "optimizer"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_of_torchtitans_keys_are_accounted_for(section, data):
    tree = tomllib.loads((CONFIGS / "torchtitan_llama3_405b.toml").read_text())
    for key in list(tree[section]):
        if data.draw(st.booleans()):
            del tree[section][key]
    try:
        reading = read_configuration(tree)
    except ValueError:
        return
    books = [*reading.used, *reading.ignored, *reading.unsupported]
    assert sorted(books) == sorted(flatten(tree))
