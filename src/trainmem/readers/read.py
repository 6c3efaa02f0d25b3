"""Recognise a configuration's format and read it."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from trainmem.config import ConfigError, once
from trainmem.readers import accelerate, deepspeed, torchtitan, trainer
from trainmem.readers.accelerate import read_accelerate
from trainmem.readers.account import Reading
from trainmem.readers.deepspeed import read_deepspeed
from trainmem.readers.foreign import check_keys, check_words
from trainmem.readers.megatron import read_megatron
from trainmem.readers.torchtitan import read_torchtitan
from trainmem.readers.trainer import read_trainer
from trainmem.words import describe

#: A configuration larger than this is not one (real ones are a few kB).
MAX_BYTES = 2**20

#: A key of so many parts is of no configuration, and takes TOML's parser time by their square.
LONG_KEY = re.compile(
    r"""(?<![\w-])(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
    r"""(?:[ \t]*+\.[ \t]*+(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')){20}"""
)

#: Format → its reader.
FORMATS: dict[str, Callable[..., Reading]] = {
    "deepspeed": read_deepspeed,
    "accelerate": read_accelerate,
    "trainer": read_trainer,
    "torchtitan": read_torchtitan,
    "megatron": read_megatron,
}

#: Format → keys at the top by which it is recognised.
SIGNS = {
    "deepspeed": set(deepspeed.TOP_LEVEL.split()),
    "accelerate": set(accelerate.TOP_LEVEL.split()),
    "trainer": set(trainer.TOP_LEVEL.split()),
    "torchtitan": set(torchtitan.TOP_LEVEL.split()),
}


def read_configuration(
    source: Mapping[str, Any] | Sequence[str] | str | PathLike[str],
    format: str | None = None,
    **given: Any,
) -> Reading:
    """Read how a step is run from the configuration that runs it.

    Parameters
    ----------
    source
        A parsed configuration, its text (JSON, TOML, or Megatron's command line), a list of
        Megatron's arguments, or a `pathlib.Path` to a file with such text. YAML must be parsed
        before: `yaml.safe_load(text)`.
    format
        `deepspeed`, `accelerate` (also FSDP's section alone), `trainer` (`TrainingArguments`),
        `torchtitan` or `megatron`; recognised where it is None.
    **given
        Options of the plan that the launcher or the script decides, such as `num_gpus`; they win
        over the configuration. For Megatron also `vocab_size`.

    Returns
    -------
    Reading
        The plan, and for every key what became of it.

    Raises
    ------
    ConfigError
        Naming a key, its bad value and what is allowed; also for a source that is no
        configuration, another tool's (which is named), a file that can't be read, or one larger
        than 1 MiB.
    TypeError
        For a given name that is not an option of the plan.
    ValueError
        For a combination that the plan does not cover.

    Examples
    --------
    >>> text = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
    >>> reading = read_configuration(text)
    >>> reading.format, reading.plan.sharding, reading.used["zero_optimization.stage"]
    ('deepspeed', 'zero3', "sharding = 'zero3'")
    """
    if format is not None and format not in FORMATS:
        raise ConfigError("format", format, f"must be one of {', '.join(FORMATS)}")
    if isinstance(source, PathLike):
        source = _file(Path(source))
    if isinstance(source, str):
        source = _parse(source, format)
    if isinstance(source, Mapping):
        found = format or _recognise(source)
    elif isinstance(source, (list, tuple)):
        found = format or "megatron"
        if format is None and all(isinstance(word, str) for word in source):
            check_words(source)
    else:
        raise ConfigError("source", source, "must be a mapping, text, a list of words or a path")
    if isinstance(source, Mapping) == (found == "megatron"):
        raise ConfigError("format", found, "doesn't go with this kind of source")
    return FORMATS[found](source, **given)


def _file(path: Path) -> str:
    if path.suffix.lower() in (".yaml", ".yml"):
        raise ConfigError("source", str(path), "must be parsed before: yaml.safe_load(text)")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # the latter for a NUL in its name
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError("source", str(path), f"must be a file that can be read: {why}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError("source", str(path), "must be at most 1 MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("source", str(path), "must be text in UTF-8") from None


def _parse(text: str, format: str | None) -> Mapping[str, Any] | list[str]:
    """Return the tree of JSON or TOML, or the words of a command line."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ConfigError("source", text, "must be at most 1 MiB")
    tree: Any
    try:
        if text.lstrip().startswith("{"):
            tree = json.loads(text, object_pairs_hook=once)
            return tree  # type: ignore[no-any-return]
        if format == "megatron" or (format is None and "--" in text and "\n[" not in f"\n{text}"):
            lines = text.replace("\\\r\n", " ").replace("\\\n", " ")
            return shlex.split(lines, comments=True)
        if found := LONG_KEY.search(text):
            raise ConfigError("source", found[0], "keys must not be nested deeper than ten levels")
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError("source", text, "must not be nested that deeply") from None
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(
            "source",
            text,
            "must be JSON, TOML or Megatron's arguments (for a file, a pathlib.Path; YAML must be "
            f"parsed before): {error}",
        ) from None


def _recognise(source: Mapping[str, Any]) -> str:
    """Return the format whose signs are most among the keys."""
    check_keys(source)
    sections = {key for key, value in source.items() if isinstance(value, Mapping)}
    counts = {name: len(signs & set(source)) for name, signs in SIGNS.items()}
    counts["torchtitan"] = len(SIGNS["torchtitan"] & sections)  # it has nothing else at the top
    best = max(counts, key=counts.__getitem__)
    if not counts[best] or sum(count == counts[best] for count in counts.values()) > 1:
        raise ConfigError(
            "source",
            describe(sorted(map(str, source))),
            f"keys must be those of one format; or name it: format={' or '.join(SIGNS)}",
        )
    return best
