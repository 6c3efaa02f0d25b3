"""Geometry: exact parameter counts, and reading config.json."""

import dataclasses
import json

import pytest

from trainmem.request import read_config
from trainmem.transformer import ARCHITECTURES, Architecture, Plan, architecture, peak
from trainmem.transformer.engine.dims import Q

# sum(p.numel() for p in AutoModelForCausalLM.from_config(...).parameters()), transformers 5.24
PARAMETERS = {
    "GPT-2": 124_439_808,
    "GPT-2-medium": 354_823_168,
    "GPT-2-large": 774_030_080,
    "GPT-2-XL": 1_557_611_200,
    "TinyLlama-1.1B": 1_100_048_384,
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-13B": 13_015_864_320,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
    "Llama-3-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Mistral-7B": 7_248_023_552,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
    "Mixtral-8x7B": 46_702_792_704,
    "Qwen3-30B-A3B": 30_532_122_624,
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


#: Files as they are published, but for what only names tokens.
POSTED = {
    "Llama-3-8B": {
        "_name_or_path": "meta-llama/Meta-Llama-3-8B", "architectures": ["LlamaForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
        "eos_token_id": [128001, 128009], "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.0",
        "unsloth_fixed": True, "unsloth_version": "2024.9", "use_cache": True, "vocab_size": 128256,
    },
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 128256,
    },
    "Mistral-7B": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32768,
    },
    "Qwen2.5-7B": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 131072,
        "tie_word_embeddings": False, "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "Qwen3-8B": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
        "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "rope_scaling": None, "sliding_window": None, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "output_router_logits": False, "rope_scaling": None,
        "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "Mixtral-8x7B": {
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "head_dim": None,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "output_router_logits": False, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.0, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "GPT-2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 50257,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", POSTED)
def test_posted_files_are_the_presets(name):
    read = Architecture.from_config(POSTED[name], name)
    preset = ARCHITECTURES[name]
    assert read.dropout == (name == "GPT-2")  # a preset leaves that to the plan
    assert dataclasses.replace(read, source=preset.source, dropout=False) == preset
    assert read.num_params == PARAMETERS[name]


def test_experts_are_counted_as_transformers_5_writes_them():
    posted = dict(POSTED["Qwen3-30B-A3B"])
    posted["num_local_experts"] = posted.pop("num_experts")
    assert Architecture.from_config(posted).num_params == PARAMETERS["Qwen3-30B-A3B"]
    with pytest.raises(ValueError, match="num_local_experts 128 and num_experts 64 differ"):
        Architecture.from_config({**posted, "num_experts": 64})


#: What the configuration classes of transformers 5.24 take for a missing key: key/value heads (of
#: 32 heads), head size (of hidden size 1024), window, positions.
MISSING = {
    "llama": (32, 32, None, 2048),
    "mistral": (8, 32, 4096, 131072),
    "mixtral": (8, 32, None, 131072),
    "qwen2": (32, 32, None, 32768),
    "qwen3": (32, 128, None, 32768),
    "qwen3_moe": (4, 32, None, 32768),
}


@pytest.mark.parametrize("family", MISSING)
def test_missing_keys_take_transformers_defaults(family):
    config = {
        "model_type": family, "hidden_size": 1024, "num_hidden_layers": 30,
        "num_attention_heads": 32, "intermediate_size": 512, "vocab_size": 1000,
    }  # fmt: skip
    if family in ("mixtral", "qwen3_moe"):
        config |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        config |= {} if family == "qwen3_moe" else {"moe_intermediate_size": None}
    a = Architecture.from_config(config)
    assert (a.num_kv_heads, a.head_dim, a.sliding_window, a.max_positions) == MISSING[family]
    assert not a.tie_embeddings
    if family.startswith("qwen"):  # 4096 once it is used; in the dense ones from layer 28 on
        used = {**config, "use_sliding_window": True}
        assert Architecture.from_config(used).sliding_window == 4096
        short = Architecture.from_config({**used, "num_hidden_layers": 28})
        assert short.sliding_window == (4096 if family == "qwen3_moe" else None)


def test_heads_of_classifiers_and_encoders_are_counted():
    # BertForSequenceClassification, two classes; GPTNeoXForCausalLM: transformers 5.24
    sizes = {"tie_embeddings": True, "max_positions": 512}
    base = Architecture("base", "bert", 12, 768, 12, 12, 64, 3072, 30522, **sizes)
    large = Architecture("large", "bert", 24, 1024, 16, 16, 64, 4096, 30522, **sizes)
    assert (base.num_params, large.num_params) == (109_483_778, 335_143_938)
    pythia = Architecture("6.9b", "neox", 32, 4096, 32, 32, 128, 16384, 50432)
    small = Architecture("1.4b", "neox", 24, 2048, 16, 16, 128, 8192, 50304)
    assert (pythia.num_params, small.num_params) == (6_857_302_016, 1_414_647_808)


def test_a_table_of_positions_ends_bert_too():
    base = Architecture("b", "bert", 2, 64, 2, 2, 32, 64, 100, True, 512)
    plan = Plan(num_gpus=1, sharding="none", precision="fp32", loss_head="compiled", seq_length=513)
    with pytest.raises(ValueError, match="seq_length 513 exceeds the 512 positions"):
        peak(base, plan)


# ---- dropout: what the file says is in memory ----
DROPPING = {
    **LLAMA, "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 3001, "vocab_size": 32003,
    "attention_dropout": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("attention", "precision", "checkpointing", "kv_heads", "traced"),
    [  # one GPU, 2 × 511 tokens; transformers 5.24 on torch 2.13, traced
        ("eager", "bf16", "none", 4, 1_511_120_384),
        ("eager", "fp32", "full", 4, 1_837_708_800),
        ("eager", "amp", "none", 16, 2_481_032_704),
        ("flash", "bf16", "none", 4, 1_264_858_624),  # keeps two seeds and no mask
        ("flash", "amp", "full", 4, 1_874_010_624),
        ("flash", "fp32", "none", 4, 2_424_890_880),  # no fused kernel: the scores are stored
        ("flash", "fp32", "full", 4, 1_835_619_328),
        ("flash", "fp32", "none", 16, 2_199_838_208),
    ],
)
def test_attention_dropout_is_traced(attention, precision, checkpointing, kv_heads, traced):
    model = Architecture.from_config({**DROPPING, "num_key_value_heads": kv_heads})
    plan = Plan(
        num_gpus=1, sharding="none", precision=precision, micro_batch=2, seq_length=511,
        attention=attention, checkpointing=checkpointing,
    )  # fmt: skip
    assert model.dropout
    assert peak(model, plan).peak_bytes == traced


def test_gpt2_drops_as_its_file_says():
    config = {**POSTED["GPT-2"], "n_layer": 4}
    plan = Plan(
        num_gpus=1, sharding="none", precision="amp", micro_batch=4, seq_length=1024,
        checkpointing="none",
    )  # fmt: skip
    dropping = peak(Architecture.from_config(config), plan).peak_bytes
    assert dropping == 4_522_196_480  # traced with the file's 0.1
    silent = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    quiet = Architecture.from_config({**config, **silent})
    assert not quiet.dropout
    assert peak(quiet, plan).peak_bytes < dropping
    assert peak(quiet, dataclasses.replace(plan, dropout=True)).peak_bytes == dropping
    missing = {key: value for key, value in config.items() if key not in silent}
    assert Architecture.from_config(missing).dropout  # transformers' default is 0.1


def test_other_stacks_do_not_read_the_file():
    model = Architecture.from_config({**DROPPING, "num_attention_heads": 16})
    plan = Plan(kernels="torchtitan", seq_length=512)
    same = dataclasses.replace(model, dropout=False)
    assert peak(model, plan).peak_bytes == peak(same, plan).peak_bytes


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameter_counts_are_exact(name):
    assert ARCHITECTURES[name].num_params == PARAMETERS[name]
    assert ARCHITECTURES[name].source.startswith("https://huggingface.co/")


def test_every_preset_is_counted():
    assert set(PARAMETERS) == set(ARCHITECTURES)


def test_lookup_ignores_case_and_lists_choices():
    assert architecture("llama-3-8b") is ARCHITECTURES["Llama-3-8B"]
    with pytest.raises(ValueError, match=r"'Llama-9' is not known; choose one of .*Llama-3-8B"):
        architecture("Llama-9")


def test_config_of_llama_equals_the_preset(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    read = Architecture.from_config(tmp_path / "config.json", name="Llama-3-8B")
    preset = ARCHITECTURES["Llama-3-8B"]
    assert dataclasses.replace(read, source=preset.source) == preset
    assert read.source.endswith("config.json")


def test_config_of_gpt2_and_qwen():
    assert Architecture.from_config(GPT2).num_params == PARAMETERS["GPT-2"]
    qwen3 = {**LLAMA, "model_type": "qwen3", "head_dim": 64}
    assert Architecture.from_config(qwen3).dims[Q] == 32 * 64
    qwen2 = Architecture.from_config({**LLAMA, "model_type": "qwen2"})
    extra = qwen2.num_params - Architecture.from_config(LLAMA).num_params
    assert extra == 32 * (4096 + 2 * 1024)  # biases of q, k and v


def test_config_of_experts():
    mixtral = Architecture.from_config(
        {
            **LLAMA,
            "model_type": "mixtral",
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        }
    )
    assert mixtral.num_params == PARAMETERS["Mixtral-8x7B"]
    qwen = Architecture.from_config(
        {
            **LLAMA,
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "vocab_size": 151936,
        }
    )
    assert qwen.num_params == PARAMETERS["Qwen3-30B-A3B"]
    assert (qwen.experts, qwen.experts_per_token) == (True, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 0}, "num_experts must be an integer from 1"),
        ({"experts_per_token": 9}, "experts_per_token must be at most num_experts = 8, got 9"),
        ({"family": "llama"}, "num_experts must be an integer from 0 to 0 for family 'llama'"),
    ],
)
def test_experts_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ARCHITECTURES["Mixtral-8x7B"], **change)


def test_sliding_window_is_read_where_it_is_used():
    mistral = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}
    assert Architecture.from_config(mistral).sliding_window == 4096
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert Architecture.from_config(qwen).sliding_window is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type 'bert' is not covered"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": ["llama"]}, "model_type .* is not covered"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "4096"}, "hidden_size must be an integer, got '4096'"),
        ({"hidden_size": 4096.0}, "hidden_size must be an integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be an integer, got True"),
        ({"num_hidden_layers": 0}, "num_layers must be an integer from 1"),
        ({"num_attention_heads": 0}, "num_heads must be an integer from 1"),
        ({"num_key_value_heads": 5}, "num_kv_heads must divide num_heads = 32, got 5"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not covered"),
        ({"attention_bias": True}, "attention_bias True is not covered"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not covered"),
        ({"quantization": {"bits": 4, "group_size": 64}}, "quantization is not covered"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures 'LlamaForSeq"),
        ({"architectures": ["LlamaForCausalLM", "LlamaModel"]}, "architectures 'LlamaModel'"),
        ({"architectures": "LlamaForTokenClassification"}, "architectures 'LlamaForToken"),
        ({"architectures": [None]}, "architectures None is not covered for llama"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, "auto_map is not covered"),
        ({"vision_config": {"hidden_size": 1}}, "vision_config is not covered"),
        ({"per_layer_config": {"0": {}}}, "per_layer_config is not covered"),
        ({"output_router_logits": True}, "output_router_logits is not covered"),
        ({"output_attentions": True}, "output_attentions is not covered"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing is not covered"),
        ({"attention_dropout": 1.0}, "attention_dropout must be a number from 0 to below 1"),
        ({"attention_dropout": "0.1"}, "attention_dropout must be a number"),
        ({"attention_dropout": float("nan")}, "attention_dropout must be a number"),
        ({"hidden_dropout": 0.1}, "'hidden_dropout' 0.1 is not known for llama"),
        ({"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' 50.0 is not known for llama"),
        ({"attn_implementation": "eager"}, "attn_implementation 'eager' is not covered"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype 'float8_e4m3fn' is not covered"),
        ({"mlp_bias": True}, "mlp_bias True is not covered"),
        ({"pretraining_tp": 2}, "pretraining_tp 2 is not covered"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 of rope_sc"),
        ({"rope_parameters": [1]}, "rope_parameters must be an object or null"),
        ({"layer_types": ["sliding_attention"] * 32}, "layer_types 'sliding_attention' is not"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "layer_types must be of 32 l"),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 32}, "layer_types is not"),
        ({"model_type": "mistral", "sliding_window": "4096"}, "sliding_window must be an integer"),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 32},
            "layer_types has 'sliding_attention', but no sliding_window is used",
        ),
        ({"num_attention_heads": 30, "num_key_value_heads": 30}, "hidden_size 4096 is not a multi"),
        ({"vocab_size": 10**12}, "vocab_size must be an integer from 1"),
    ],
)
def test_bad_config_names_the_field(change, message):
    with pytest.raises(ValueError, match=message):
        Architecture.from_config({**LLAMA, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"bits": 4}}, "quantization_config is not covered"),
        ({"architectures": ["GPT2ForSequenceClassification"]}, "only GPT2LMHeadModel"),
        ({"resid_pdrop": 0.0}, "resid_pdrop 0 with embd_pdrop 0.1 is not covered"),
        ({"resid_pdrop": -1}, "resid_pdrop must be a number from 0 to below 1, got -1"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True is not"),
        ({"hidden_size": 1024}, "n_embd 768 and hidden_size 1024 differ"),
    ],
)
def test_bad_config_of_gpt2_names_the_field(change, message):
    with pytest.raises(ValueError, match=message):
        Architecture.from_config({**GPT2, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": None, "auto_map": None, "quantization_config": None},
        {"architectures": ["FSDPLlamaForCausalLM"], "auto_map": {"AutoTokenizer": "t.T"}},
        {"attn_implementation": "sdpa", "dtype": "bfloat16", "torch_dtype": "torch.float16"},
        {"some_fork_switch": False, "some_fork_size": 0, "some_fork_list": []},
        {"sep_token_id": 3, "num_labels": 5, "id2label": {"0": "a"}, "is_llama_config": True},
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "pretraining_tp": 1},
        {"sliding_window": 4096, "layer_types": ["full_attention"] * 32},
    ],
)
def test_what_says_nothing_about_memory_is_passed_over(change):
    assert Architecture.from_config({**LLAMA, **change}) == Architecture.from_config(LLAMA)


def test_an_error_stays_short():
    with pytest.raises(ValueError, match="hidden_size must be an integer") as caught:
        Architecture.from_config({**LLAMA, "hidden_size": "4" * 5_000_000})
    assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match="is not known for llama") as caught:
        Architecture.from_config({**LLAMA, "x" * 5_000_000: "y" * 5_000_000})
    assert len(str(caught.value)) < 400


def test_a_key_given_twice_is_refused(tmp_path):
    twice = json.dumps(LLAMA)[:-1] + ', "hidden_size": 1024}'
    path = tmp_path / "config.json"
    path.write_text(twice)
    for read in (Architecture.from_config, read_config):
        with pytest.raises(ValueError, match=r"hidden_size.*twice"):
            read(path)
    with pytest.raises(ValueError, match=r"hidden_size.*twice"):
        read_config(twice)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": 0.1}, "dropout must be True or False, got 0.1"),
        ({"sliding_window": 0}, "sliding_window must be an integer from 1"),
        ({"sliding_window": True}, "sliding_window must be an integer from 1"),
    ],
)
def test_fields_given_by_hand_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ARCHITECTURES["Mistral-7B"], **change)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "must hold one JSON object, got list"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b" " * 1_000_001, "larger than 1000000 bytes"),
    ],
    ids=["broken", "list", "binary", "deep", "huge"],
)
def test_bad_file(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Architecture.from_config(path)


def test_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match=r"config\.json"):
        Architecture.from_config(tmp_path / "config.json")
