"""Hugging Face's `config.json`: what memory depends on is read, or refused by the field's name.

A missing key takes the default of transformers' own configuration class (5.24), which differs from
family to family. A key that nothing here knows is passed over only where it says nothing (null,
false, 0, empty): a fork's code may read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmem.config import once
from trainmem.words import describe


@dataclass(frozen=True, slots=True)
class Format:
    """How a family's configuration class of transformers reads its file.

    Attributes
    ----------
    model
        The causal language model, whose layers and head are described.
    sizes
        Reads the sizes.
    positions, kv_heads, head_dim
        Defaults; None for as many key/value heads as heads, and for hidden size / heads.
    window
        Default of `sliding_window`.
    slides
        Which layers it holds for: "none", "all", "if used" (`use_sliding_window`), or "by layer"
        (`layer_types`, else `max_window_layers`).
    only
        Fields on which memory depends, and the values that are covered, the default first.
    ignored
        Fields that this class reads, or that its files carry, and that no memory depends on.
    layer_types
        Whether a list of the layers' kinds is covered.
    ffn, experts
        Names of the FFN size (one expert's, in a mixture), and of the number of experts.
    """

    model: str
    sizes: Callable[[Fields, Format], dict[str, Any]]
    positions: int
    kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None
    slides: str = "none"
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    layer_types: bool = True
    ffn: str = "intermediate_size"
    experts: tuple[str, ...] = ()


#: Of every family.
_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("dtype", "torch_dtype"), (None, "auto", "bfloat16", "float16", "float32")),
    **dict.fromkeys(
        ("attn_implementation", "_attn_implementation"),  # another kernel is the plan's to say
        (None, "sdpa", "flash_attention_2", "flash_attention_3"),
    ),
    **dict.fromkeys(("experts_implementation", "_experts_implementation"), (None, "grouped_mm")),
    "partial_rotary_factor": (None, 1),
    "pretraining_tp": (1, None),
}

#: MLPs with SiLU and no biases; and no biases in attention either.
SILU: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swish"), "mlp_bias": (False,)}
NO_BIAS: dict[str, tuple[Any, ...]] = {**SILU, "attention_bias": (False,)}

#: Fields that must say nothing, and what is covered instead.
_REFUSED = {
    **dict.fromkeys(
        ("quantization_config", "compression_config", "quantization"),
        "only unquantised weights are",
    ),
    **dict.fromkeys(("vision_config", "text_config", "audio_config"), "only text models are"),
    **dict.fromkeys(
        ("is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"),
        "only decoders without cross attention are",
    ),
    **dict.fromkeys(
        ("output_attentions", "output_hidden_states"),
        "what is kept of every layer for the caller is not counted",
    ),
    "auto_map": "the model's own code would run, not that of transformers",
    "chunk_size_feed_forward": "only whole MLPs are",
    "gradient_checkpointing": "the plan's checkpointing says it",
    "output_router_logits": "only the loss of the next token is",
    "per_layer_config": "only layers that are all alike are",
    "pruned_heads": "only whole layers are",
    "router_jitter_noise": "only routers without noise are",
    "torchscript": "only models as they train are",
}

#: Fields that no memory of a training step depends on: names, tokens, text generation, positions,
#: scales, and heads that are not trained here.
_HARMLESS_KEYS = """
    _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation_internal _flash_attn_2_enabled _name_or_path
    assistant_confidence_threshold assistant_lookbehind bad_words_ids base_model
    begin_suppress_tokens classifier_dropout diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty finetuning_task id2label initializer_range is_decoder
    is_llama_config label2id layer_norm_epsilon length_penalty license max_length max_new_tokens
    max_seq_len max_seq_length max_sequence_length min_length model_max_length model_name model_type
    n_ctx name name_or_path no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule
    num_beam_groups num_beams num_labels num_return_sequences original_max_position_embeddings
    output_past output_scores prefix problem_type remove_invalid_values repetition_penalty
    return_dict return_dict_in_generate rms_norm_eps rope_interleaved rope_parameters rope_scaling
    rope_theta router_aux_loss_coef seq_length suppress_tokens target_lookbehind
    task_specific_params temperature tf_legacy_loss tie_last_hidden_states tokenizer_class
    tokenizer_model_max_length top_k top_p transformers.js_config typical_p use_cache
    use_return_dict
"""
_HARMLESS = frozenset(_HARMLESS_KEYS.split())
_HARMLESS_STARTS = ("summary_", "unsloth_")
_HARMLESS_ENDS = ("_token_id", "_token_ids", "_token", "_version")


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises
    ------
    ValueError
        Where it is not JSON, is nested too deeply, or has a key twice in one object.
    """
    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class Fields:
    """The keys of one file, each noted once it is read."""

    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        self.config, self.family, self.read = config, family, set[str]()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, which is noted as read."""
        self.read.add(key)
        return self.config.get(key, default)

    def integer(self, *keys: str, default: int | None = None, null: int | None = None) -> int:
        """Return a whole number under one of its names; `null` is what null stands for."""
        found = {key: self.get(key) for key in keys if key in self.config}
        said: dict[str, int] = {}
        for key, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int | None):
                raise ValueError(f"{key} must be an integer, got {describe(value)}")
            if value is not None:
                said[key] = value
        if len(set(said.values())) > 1:
            raise ValueError(
                " and ".join(f"{k} {describe(v)}" for k, v in said.items()) + " differ"
            )
        if said:
            return next(iter(said.values()))
        answer = default if null is None or not found else null
        if answer is None:
            raise ValueError(f"{keys[0]} is missing from the configuration")
        return answer

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false, got {describe(value)}")
        return value

    def dropped(self, key: str, default: float) -> bool:
        """Whether a share of values is dropped in training."""
        value = self.get(key, default)
        if value is None:
            return False
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < 1:
            raise ValueError(f"{key} must be a number from 0 to below 1, got {describe(value)}")
        return bool(value > 0)

    def expect(self, key: str, allowed: tuple[Any, ...]) -> None:
        """Refuse a value that is not covered; the first allowed is the default."""
        value = self.get(key, allowed[0])
        plain = value.removeprefix("torch.") if isinstance(value, str) else value
        if not any(
            type(plain) is type(a) and plain == a for a in (*allowed, *map(_float, allowed))
        ):
            choices = " or ".join(map(repr, allowed))
            raise ValueError(
                f"{key} {describe(value)} is not covered for {self.family} (only {choices})"
            )


def _float(value: Any) -> Any:
    """Return a whole number as a float: JSON may write either."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _says_nothing(value: Any) -> bool:
    plain = isinstance(value, int | float | str | list | tuple | dict)
    return value is None or (plain and not value)


def read_fields(config: Mapping[str, Any], formats: Mapping[str, Format]) -> dict[str, Any]:
    """Return what a `config.json` says of an `Architecture`, but for its name and source.

    Raises
    ------
    ValueError
        Naming the field that is missing, wrong or not covered.
    """
    family, known = config.get("model_type"), ", ".join(formats)
    if family is None:
        raise ValueError(f"model_type is missing (covered: {known})")
    if not isinstance(family, str) or family not in formats:
        raise ValueError(f"model_type {describe(family)} is not covered (covered: {known})")
    f, form = Fields(config, family), formats[family]
    _check_code(f, form)
    for key, allowed in {**_ONLY, **form.only}.items():
        f.expect(key, allowed)
    for key, why in _REFUSED.items():
        value = f.get(key)
        if key == "auto_map" and isinstance(value, Mapping):
            value = [name for name in value if name not in ("AutoTokenizer", "AutoProcessor")]
        if not _says_nothing(value):
            raise ValueError(f"{key} is not covered: {why}")
    _check_rotary(f)
    sizes = form.sizes(f, form)
    for key, value in config.items():
        harmless = isinstance(key, str) and (
            key in f.read | form.ignored | _HARMLESS
            or key.startswith(_HARMLESS_STARTS)
            or key.endswith(_HARMLESS_ENDS)
        )
        if not (harmless or _says_nothing(value)):
            raise ValueError(
                f"{describe(key)} {describe(value)} is not known for {family}: memory may depend "
                "on it; leave it out if the model's code does not read it"
            )
    return {"family": family, **sizes}


def _check_code(f: Fields, form: Format) -> None:
    """Refuse another head, or code, than is described."""
    named = f.get("architectures")
    listed = named if isinstance(named, list | tuple) else [] if named is None else [named]
    for name in listed:  # FSDP 1 put its own name in front of the class's
        plain = name.removeprefix("FSDP").lower() if isinstance(name, str) else None
        if plain != form.model.lower():
            raise ValueError(
                f"architectures {describe(name)} is not covered for {f.family} (only {form.model})"
            )


def _check_rotary(f: Fields) -> None:
    """Refuse rotary embeddings of a part of a head: all others have the same tensors."""
    for key in ("rope_parameters", "rope_scaling"):
        value = f.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{key} must be an object or null, got {describe(value)}")
        part = (value or {}).get("partial_rotary_factor", 1)
        if part != 1:
            raise ValueError(
                f"partial_rotary_factor {describe(part)} of {key} is not covered for {f.family} "
                "(only 1)"
            )


def llama_sizes(f: Fields, form: Format) -> dict[str, Any]:
    """Llama's block, and those of Mistral and Qwen, dense or of experts."""
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    layers = f.integer("num_hidden_layers")
    head_dim = f.integer("head_dim", default=form.head_dim or hidden // max(heads, 1))
    experts = {}
    if form.experts:
        experts = {
            "num_experts": f.integer(*form.experts),
            "experts_per_token": f.integer("num_experts_per_tok"),
        }
    return {
        "num_layers": layers,
        "hidden_dim": hidden,
        "num_heads": heads,
        "num_kv_heads": f.integer(
            "num_key_value_heads",
            default=heads if form.kv_heads is None else form.kv_heads,
            null=heads,
        ),
        "head_dim": head_dim,
        "ffn_dim": f.integer(form.ffn),
        "vocab_size": f.integer("vocab_size"),
        "tie_embeddings": f.flag("tie_word_embeddings", False),
        "max_positions": f.integer("max_position_embeddings", default=form.positions),
        "sliding_window": _window(f, form, layers),
        "dropout": f.dropped("attention_dropout", 0.0),
        **experts,
    }


def _window(f: Fields, form: Format, layers: int) -> Any:
    """Return the window of the layers that slide, unchecked, or None where none does."""
    types = _layer_types(f, form, layers)
    if form.slides == "none":
        return None
    window = f.get("sliding_window", form.window)
    if form.slides != "all" and not f.flag("use_sliding_window", False):
        window = None
    if form.slides != "by layer":
        return window
    first = f.integer("max_window_layers", default=28)
    if types is None:
        return window if first < layers else None
    if "sliding_attention" not in types:
        return None
    if window is None:
        raise ValueError("layer_types has 'sliding_attention', but no sliding_window is used")
    return window


def _layer_types(f: Fields, form: Format, layers: int) -> list[str] | None:
    types = f.get("layer_types")
    if types is None:
        return None
    known = ["full_attention"] + ["sliding_attention"] * (form.slides == "by layer")
    if not form.layer_types:
        raise ValueError(f"layer_types is not covered for {f.family} (only null)")
    if not isinstance(types, list | tuple):
        raise ValueError(f"layer_types must be a list or null, got {describe(types)}")
    for kind in types:
        if kind not in known:
            choices = " or ".join(map(repr, known))
            raise ValueError(
                f"layer_types {describe(kind)} is not covered for {f.family} (only {choices})"
            )
    if len(types) != layers:
        raise ValueError(f"layer_types must be of {layers} layers, got {len(types)}")
    return list(types)
