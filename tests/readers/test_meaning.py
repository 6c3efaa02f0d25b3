"""What keys mean for memory, where that takes more than a look."""

import pytest

from trainmem import simulate
from trainmem.readers import read_configuration, trainer
from trainmem.transformer import TransformerModel

from .test_refusals import BASE


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        ("", "--use-flash-attn"),
        ("--use-flash-attn", None),
        ("--use-mcore-models", None),
        ("--transformer-impl transformer_engine", None),
        ("--transformer-impl local", "--transformer-impl"),
        ("--transformer-impl local --use-flash-attn", None),
        ("--transformer-impl local --use-mcore-models --use-flash-attn", "--transformer-impl"),
        ("--attention-backend fused", None),
        ("--attention-backend auto", None),
        ("--attention-backend unfused", "--attention-backend"),
        ("--attention-backend local --use-mcore-models", "--attention-backend"),
    ],
)
def test_megatrons_attention_is_flash_only_where_the_arguments_say_so(words, stored):
    arguments = f"{BASE} --vocab-size 1000 {words}"
    reading = read_configuration(arguments)
    assert dict(reading.unsupported) == {}
    assert reading.plan.attention == ("eager" if stored else "flash")
    if stored and stored in words:
        assert "attention = 'eager'" in reading.used[stored]
    elif stored:
        assert "--use-flash-attn" in reading.assumed["attention"]
    assert read_configuration(arguments, attention="flash").plan.attention == "flash"


def test_megatrons_stored_scores_say_what_is_not_modelled_of_them():
    stored = f"{BASE} --vocab-size 1000 --transformer-impl local"
    assert not read_configuration(stored).unsupported
    for words, key in (
        ("--attention-softmax-in-fp32", "--attention-softmax-in-fp32"),
        ("--hidden-dropout 0", "--attention-dropout"),
        ("--attention-dropout 0", "--attention-dropout"),
    ):
        assert set(read_configuration(f"{stored} {words}").unsupported) == {key}


def test_a_published_run_without_flash_attention_runs_out_of_memory():
    """GPT-2 large on a V100 of 31.7 GiB: out of memory with 28.8 GiB allocated, 0.8 more asked."""
    arguments = (
        "--num-layers 36 --hidden-size 1280 --num-attention-heads 20 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 16 --fp16 "
        "--use-distributed-optimizer"
    )
    for gate in ("", " --swiglu"):
        reading = read_configuration(arguments + gate, num_gpus=1, vocab_size=50257)
        model = reading.architecture
        assert (model.gated, model.linear_bias, model.learned_positions) == (bool(gate), True, True)
        answer = simulate(architecture=model, plan=reading.plan, gpu="V100 · 32 GB")
        assert answer.grade == "does not fit"
        flash = read_configuration(
            arguments + gate + " --use-flash-attn", num_gpus=1, vocab_size=50257
        )
        less = simulate(architecture=model, plan=flash.plan, gpu="V100 · 32 GB")
        scores = 5 * 20 * 1024**2 * 4 * 36  # 2 softmax, 1 mask, 2 dropped: a layer and sequence
        freed = (answer.per_gpu_total_gb - less.per_gpu_total_gb) * 1e9
        assert freed == pytest.approx(scores, rel=0.05)


def test_megatrons_gpt_has_the_parameters_that_its_arguments_make():
    """Megatron's CI: 12 layers of 512 with learned positions and biases, 0.064 billion."""
    words = "--num-layers 12 --hidden-size 512 --num-attention-heads 8 --bf16 --seq-length 1024"
    words += " --max-position-embeddings 1024 --micro-batch-size 4 --use-mcore-models"
    model = read_configuration(words, vocab_size=50257).architecture
    h, layers = 512, 12
    products = layers * (12 * h * h + 9 * h)  # 3h + h + 4h + h of biases
    assert model.num_params == products + (50304 + 1024) * h + (2 * layers + 1) * 2 * h
    rotary = read_configuration(
        words + " --position-embedding-type rope --disable-bias-linear", vocab_size=50257
    ).architecture
    assert model.num_params - rotary.num_params == 1024 * h + layers * 9 * h


@pytest.mark.parametrize(
    ("words", "dropout"),
    [("", True), ("--hidden-dropout 0.1", True), ("--hidden-dropout 0", False),
     ("--hidden-dropout 0.0 --attention-dropout 0.1", False)],
)  # fmt: skip
def test_megatrons_dropout_is_on_by_default(words, dropout):
    reading = read_configuration(f"{BASE} --vocab-size 50000 --use-flash-attn {words}")
    TransformerModel(reading.architecture, reading.plan).components(reading.training_config())
    assert (reading.plan.dropout, dict(reading.unsupported)) == (dropout, {})


@pytest.mark.parametrize(
    ("keys", "book"),
    [
        ({"use_cache": True}, "used"),
        ({"use_cache": True, "gradient_checkpointing": False}, "used"),
        ({"use_cache": True, "gradient_checkpointing": True}, "ignored"),
        ({"use_cache": True, "use_peft": False}, "ignored"),  # TRL checkpoints by default
        ({"use_cache": False}, "ignored"),
        ({"use_cache": True, "fsdp": True, "fsdp_config": {"activation_checkpointing": True}},
         "used"),
    ],
    ids=str,
)  # fmt: skip
def test_use_cache_counts_unless_transformers_turns_it_off(keys, book):
    reading = read_configuration({"output_dir": "x", "bf16": True, **keys})
    assert "use_cache" in getattr(reading, book)
    assert reading.plan.use_cache is (book == "used")


def under_deepspeed(**keys):
    section = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
    section |= keys.pop("deepspeed", {})
    return read_configuration({"output_dir": "x", "bf16": True, "deepspeed": section, **keys})


@pytest.mark.parametrize("optim", ["adamw_torch", "paged_adamw_8bit", "adafactor", "sgd"])
def test_optim_counts_under_deepspeed_where_its_file_names_no_optimizer(optim):
    reading = under_deepspeed(optim=optim)
    expected = trainer.OPTIMIZERS.get(optim)
    assert reading.plan.optimizer == expected or "optim" in reading.unsupported
    assert "optim" not in reading.ignored
    named = under_deepspeed(optim=optim, deepspeed={"optimizer": {"type": "AdamW"}})
    assert named.ignored["optim"] == "DeepSpeed's file names its own optimizer"
    assert "optim" in under_deepspeed(optim="adamw_torch_fused").used


def test_a_compilers_mode_or_backend_switches_it_on():
    def read(**keys):
        return read_configuration({"output_dir": "x", "bf16": True, "fsdp": True, **keys})

    assert read(torch_compile_backend="inductor").plan.kernels == "compiled"
    assert read(torch_compile_mode="default").plan.kernels == "compiled"
    assert "torch_compile_mode" in read(torch_compile_mode="reduce-overhead").unsupported
    assert "torch_compile" in read(torch_compile=True, torch_compile_backend="eager").unsupported
    assert read(torch_compile=False).plan.kernels == "transformers"


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
