"""Geometry: exact parameter counts, and reading config.json."""

import dataclasses
import json

import pytest

from trainmem.transformer import ARCHITECTURES, Architecture, architecture

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
    assert Architecture.from_config(qwen3).dims["q"] == 32 * 64
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
        ({"vocab_size": 10**12}, "vocab_size must be an integer from 1"),
    ],
)
def test_bad_config_names_the_field(change, message):
    with pytest.raises(ValueError, match=message):
        Architecture.from_config({**LLAMA, **change})


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
