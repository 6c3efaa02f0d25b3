"""What goes over HTTP: strict JSON, the API answer as text, and its schema.

`server` writes answers with `encode`; `answer` reads them. Both take the names and types from
`Outputs`, by the tables here, so neither can drift from the other.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, Final, get_type_hints

import numpy as np

from trainmem.config import FIELDS
from trainmem.outputs import OUTPUT_NAMES, Outputs
from trainmem.simulation import Simulation
from trainmem.sweeps import SWEEP_POINTS
from trainmem.words import describe

__all__ = ["ALIASES", "PATH", "answer_schema", "encode", "is_loopback", "parse"]

PATH: Final = "/edge/training"
ALIASES: Final = ("/edge/train", "/edge/finetune", "/edge/fsdp", "/edge/zero")

OUTPUTS: Final = {
    name: hint for name, hint in get_type_hints(Outputs).items() if name in OUTPUT_NAMES
}

# The profile's scalars repeat an output or an input: name -> what it repeats.
REPEATS: Final = {
    "model_state_gb": "model_states_per_gpu_gb",
    "activation_gb": "activations_per_gpu_gb",
    "capacity_gb": "gpu_capacity_gb",
    "per_gpu_gb": "per_gpu_total_gb",
    "num_gpus": "num_gpus",
    "seq_length": "seq_length",
    "fits": "fits",
}
SWEEPS: Final = {"mem_vs_gpus": int, "mem_vs_seq": float}
TOP: Final = {"model": str, "steps": int, "node": str, "compute_ms": float}


def is_loopback(host: str) -> bool:
    """Return whether a host, by name or by address, is this machine itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"ambiguous JSON: {describe(twice)} is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"not JSON: it has no {name}")


_STRICT = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def parse(data: bytes) -> Any:
    """Return the value of a JSON text, read strictly.

    Raises
    ------
    ValueError
        In words that follow "the body is", where it isn't UTF-8 or isn't JSON: NaN and Infinity,
        a name given twice, thousands of digits or nested brackets are refused too.
    """
    try:
        return _STRICT.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        # Python refuses to read integers of thousands of digits, in words meant for programmers.
        digits = "int_max_str_digits" in str(error)
        raise ValueError(
            "not JSON: too many digits in a number" if digits else str(error)
        ) from None


def encode(simulation: Simulation, *, node: str | None = None) -> bytes:
    """Return the API answer as JSON: ``simulation.to_dict()``, written some five times faster.

    All that is the same from one request to the next, the sweeps' labels above all, is kept as
    a template, and only the numbers are filled in.

    Parameters
    ----------
    simulation : Simulation
        What to send.
    node : str, optional
        Who computed it, where that isn't `Simulation.node`.
    """
    gpus, seqs = simulation.gpu_sweep, simulation.seq_sweep
    template = _template(
        simulation.description,
        simulation.node if node is None else node,
        (gpus.x.tobytes(), gpus.x.dtype.str),
        (seqs.x.tobytes(), seqs.x.dtype.str),
    )
    values = [*_INPUTS(simulation.config), *_OUTPUTS(simulation)]
    for place in _WORDS:
        values[place] = _text(values[place])
    return (
        template
        % (
            *values,
            *gpus.total_gb.tolist(),
            *seqs.total_gb.tolist(),
            *_REPEATED(values),
            simulation.compute_ms,
        )
    ).encode()


_INPUTS: Final = attrgetter(*FIELDS)
_OUTPUTS: Final = attrgetter(*OUTPUT_NAMES)
_PLACES: Final = (*FIELDS, *OUTPUT_NAMES)
# Python writes numbers as JSON does, but for the rest.
_WORDS: Final = [
    place for place, name in enumerate(_PLACES) if OUTPUTS.get(name, float) not in (float, int)
]
_REPEATED: Final = itemgetter(*map(_PLACES.index, REPEATS.values()))
_HOLE: Final = "\0"
_HOLE_GB: Final = "\1"


def _text(value: Any) -> str:
    """Return a scalar as JSON, the usual ones without the cost of an encoder."""
    if value is True or value is False:
        return "true" if value else "false"
    return str(value) if type(value) is int else json.dumps(value)


@lru_cache(maxsize=256)
def _template(description: str, node: str, gpus: tuple[bytes, str], seqs: tuple[bytes, str]) -> str:
    """Return an answer with a ``%s`` for each scalar and a ``%.3f`` for each GB of a sweep."""
    sweeps = [
        [[kind(round(at)), _HOLE_GB] for at in np.frombuffer(*x).tolist()]
        for kind, x in zip(SWEEPS.values(), (gpus, seqs), strict=True)
    ]
    answer = {
        "model": description,
        "inputs": dict.fromkeys(FIELDS, _HOLE),
        "outputs": dict.fromkeys(OUTPUT_NAMES, _HOLE),
        "profile": dict(zip(SWEEPS, sweeps, strict=True)) | dict.fromkeys(REPEATS, _HOLE),
        "steps": sum(map(len, sweeps)),
        "node": node,
        "compute_ms": _HOLE,
    }
    text = json.dumps(answer).replace("%", "%%")
    for hole, conversion in ((_HOLE, "%s"), (_HOLE_GB, "%.3f")):
        text = text.replace(json.dumps(hole), conversion)
    return text


def answer_schema() -> dict[str, Any]:
    """Return the JSON schema of the API answer."""
    pairs = {
        name: {
            "type": "array",
            "minItems": SWEEP_POINTS,
            "maxItems": SWEEP_POINTS,
            "description": "[where, GB per GPU] pairs.",
            "items": {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "items": _kind_schema(float),
            },
        }
        for name in SWEEPS
    }
    inputs = {
        name: {"type": "integer" if field.kind == "int" else "number"}
        for name, field in FIELDS.items()
    }
    scalars = {
        name: inputs[source] if source in FIELDS else _kind_schema(OUTPUTS[source])
        for name, source in REPEATS.items()
    }
    top = {name: _kind_schema(kind) for name, kind in TOP.items()}
    return _object_schema(
        {
            "model": top["model"],
            "inputs": _object_schema(inputs),
            "outputs": _object_schema({name: _kind_schema(kind) for name, kind in OUTPUTS.items()}),
            "profile": _object_schema(pairs | scalars),
            "steps": top["steps"],
            "node": top["node"],
            "compute_ms": top["compute_ms"],
        }
    )


def _object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _kind_schema(kind: Any) -> dict[str, Any]:
    names = {float: "number", int: "integer", bool: "boolean", str: "string"}
    return {"type": names.get(kind, ["integer", "null"])}
