"""Configurations as people have them: every key of a file is accounted for, exactly once."""

import json
import tomllib
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.config import ConfigError, TrainingConfig
from trainmem.transformer import OPTIONS, TransformerModel
from trainmem.transformer.readers import FORMATS, Reading, read_configuration
from trainmem.transformer.readers.ledger import flatten
from trainmem.transformer.readers.megatron import parse
from trainmem.transformer.readers.read import MAX_BYTES, _parse

CONFIGS = Path(__file__).parents[1] / "data" / "configs"

#: File → format, and options that its plan must have.
EXPECTED = {
    "deepspeed_zero3.json": (
        "deepspeed",
        {"num_gpus": 16, "micro_batch": 4, "accumulation": 4, "sharding": "zero3",
         "precision": "bf16_master", "framework": "deepspeed", "offload": "all"},
    ),
    "deepspeed_zero2_auto.json": (
        "deepspeed",
        {"sharding": "zero2", "precision": "bf16_master", "framework": "deepspeed"},
    ),
    "accelerate_fsdp.json": (
        "accelerate",
        {"num_gpus": 16, "sharding": "zero2", "precision": "mixed", "checkpointing": "full",
         "reduce_dtype": "bfloat16", "optimizer": "adamw_foreach"},
    ),
    "accelerate_deepspeed.json": (
        "accelerate",
        {"num_gpus": 8, "sharding": "zero3", "precision": "bf16_master", "accumulation": 8,
         "offload": "optimizer", "framework": "deepspeed"},
    ),
    "fsdp2_section.json": ("accelerate", {"sharding": "zero3", "offload": "all"}),
    "trainer_deepspeed.json": (
        "trainer",
        {"micro_batch": 2, "accumulation": 8, "checkpointing": "full", "sharding": "zero3",
         "precision": "bf16_master", "framework": "deepspeed", "optimizer": "adamw"},
    ),
    "trainer_fsdp.json": (
        "trainer",
        {"micro_batch": 1, "checkpointing": "full", "sharding": "zero3", "precision": "mixed",
         "kernels": "liger", "loss_head": "fused", "optimizer": "adamw"},
    ),
    "trl_qlora.json": (
        "trainer",
        {"micro_batch": 4, "seq_length": 2048, "precision": "bf16", "lora_rank": 32,
         "lora_targets": "all", "quantization": "nf4_double", "optimizer": "adam8bit",
         "checkpointing": "full"},
    ),
    "torchtitan_llama3_8b.toml": (
        "torchtitan",
        {"num_gpus": 8, "micro_batch": 2, "seq_length": 8192, "sharding": "zero3",
         "precision": "mixed", "kernels": "torchtitan", "checkpointing": "selective",
         "loss_head": "transformers", "wrapping": "split"},
    ),
    "torchtitan_llama3_405b.toml": (
        "torchtitan",
        {"tp": 8, "pp": 8, "vpp": 2, "micro_batch": 1, "accumulation": 16, "sharding": "zero2",
         "kernels": "compiled", "loss_head": "compiled", "checkpointing": "full",
         "optimizer": "adamw_foreach"},
    ),
    "torchtitan_2024.toml": (
        "torchtitan",
        {"num_gpus": 16, "tp": 2, "micro_batch": 8, "kernels": "compiled",
         "checkpointing": "every_2nd"},
    ),
    "megatron_llama3_70b.txt": (
        "megatron",
        {"num_gpus": 64, "tp": 4, "pp": 4, "vpp": 4, "accumulation": 32, "sharding": "zero1",
         "precision": "bf16_master", "sequence_parallel": True, "checkpointing": "selective",
         "loss_head": "in_place", "framework": "megatron", "kernels": "transformer_engine"},
    ),
    "megatron_mixtral.txt": (
        "megatron",
        {"pp": 4, "ep": 8, "num_gpus": 32, "sharding": "zero1", "checkpointing": "full",
         "sequence_parallel": False, "loss_head": "transformers", "accumulation": 32},
    ),
}  # fmt: skip

#: File → keys that must be unsupported, and no others.
UNSUPPORTED = {
    "deepspeed_zero3.json": {"zero_optimization.stage3_prefetch_bucket_size"},
    "deepspeed_zero2_auto.json": {
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.reduce_bucket_size",
    },
    "accelerate_fsdp.json": {"fsdp_config.fsdp_version"},
    "trainer_deepspeed.json": {
        "deepspeed.zero_optimization.reduce_bucket_size",
        "deepspeed.zero_optimization.stage3_prefetch_bucket_size",
        "deepspeed.zero_optimization.stage3_param_persistence_threshold",
    },
    "trl_qlora.json": {"lora_dropout"},
    "torchtitan_llama3_405b.toml": {
        "model.converters",
        "quantize.linear.float8.enable_fsdp_float8_all_gather",
    },
    "torchtitan_2024.toml": {"training.data_parallel_replicate_degree"},
    "megatron_llama3_70b.txt": {"--fp8-format"},
}


def leaves(name: str) -> set[str]:
    """Return the keys of a file, found without the readers where that is possible."""
    text = (CONFIGS / name).read_text()
    if name.endswith(".txt"):
        return set(parse(_parse(text, "megatron")))
    return set(flatten(json.loads(text) if name.endswith(".json") else tomllib.loads(text)))


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
    unknown = {key for key, why in reading.ignored.items() if why == "unknown key"}
    assert unknown <= {"prefetch_my_data", "--my-own-argument"}


@pytest.mark.parametrize("name", EXPECTED)
def test_inputs_and_plan_agree(name):
    reading = read_configuration(CONFIGS / name)
    config = reading.training_config()
    assert {key: getattr(config, key) for key in reading.inputs} == dict(reading.inputs)
    assert set(reading.assumed) <= set(OPTIONS)
    text = str(reading)
    assert all(f"  {key}: " in text for key in leaves(name))


def test_unknown_keys_are_listed():
    reading = read_configuration(CONFIGS / "deepspeed_zero3.json")
    assert reading.ignored["prefetch_my_data"] == "unknown key"


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
    ],
    ids=str,
)
def test_what_is_no_configuration_is_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        read_configuration(source)


def test_large_and_binary_files_are_refused(tmp_path):
    path = tmp_path / "big.json"
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="at most 1 MiB"):
        read_configuration(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="UTF-8"):
        read_configuration(path)


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


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ({"output_dir": "x"}, {"precision": "fp32", "checkpointing": "none"}),
        ({"bf16": True, "optim": "sgd"}, {"precision": "amp", "optimizer": "sgd"}),
        ({"bf16": True, "dtype": "bfloat16", "seed": 1}, {"precision": "bf16"}),
        ({"bf16": True, "fsdp": ["shard_grad_op", "offload"]},
         {"sharding": "zero2", "precision": "mixed", "offload": "all"}),
        ({"bf16": True, "fsdp": "no_shard"}, {"sharding": "ddp", "precision": "amp"}),
        ({"bf16": True, "fsdp": True, "fsdp_config": {"fsdp_reshard_after_forward": False}},
         {"sharding": "zero2"}),
        ({"max_length": 512, "gradient_checkpointing": False},
         {"seq_length": 512, "precision": "amp", "checkpointing": "none"}),
        ({"use_peft": True, "lora_target_modules": "all-linear"},
         {"lora_rank": 16, "lora_targets": "all", "quantization": "none"}),
        ({"use_peft": True, "load_in_8bit": True, "lora_target_modules": ["q_proj"]},
         {"lora_targets": "qv", "quantization": "int8"}),
        ({"activation_checkpoint": {"mode": "none"}, "training": {}}, {"checkpointing": "none"}),
        ({"training": {"local_batch_size": 1, "global_batch_size": 32}}, {"accumulation": 4}),
        ({"training": {"dtype": "bfloat16"}}, {"precision": "bf16"}),
        ({"zero_optimization": True, "fp16": {"enabled": True}},
         {"sharding": "zero1", "precision": "bf16_master", "framework": "deepspeed"}),
        ({"zero_optimization": {"stage": 3}}, {"precision": "fp32", "framework": "torch"}),
        ({"train_batch_size": 64, "bf16": {"enabled": True}},
         {"micro_batch": 8, "accumulation": 1, "sharding": "ddp"}),
        (f"{BASE} --recompute-activations --context-parallel-size 2",
         {"checkpointing": "selective", "cp": 2, "sharding": "ddp"}),
        (f"{BASE} --num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-size=2 "
         "--global-batch-size 16", {"vpp": 2, "pp": 2, "accumulation": 4}),
    ],
    ids=str,
)  # fmt: skip
def test_ways_to_say_it(source, options):
    plan = read_configuration(source).plan
    assert {key: getattr(plan, key) for key in options} == options


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
    assert sorted(books) == sorted(names | {"--bf16"})


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
