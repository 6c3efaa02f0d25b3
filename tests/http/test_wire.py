"""Strict JSON, and answers written and read without a socket."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainmem
from trainmem import BadAnswer, TrainingConfig, simulate
from trainmem.config import FIELDS
from trainmem.http.answer import compare, decode
from trainmem.http.wire import encode, parse

configs = st.builds(
    TrainingConfig,
    **{
        field.name: st.sampled_from(field.choices)
        if field.choices
        else st.integers(*map(int, field.bounds))
        if field.kind == "int"
        else st.floats(*field.bounds)
        for field in FIELDS.values()
    },
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "not JSON: Expecting value"),
        (b'{"num_gpus": 8', "not JSON"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' is given twice"),
        (b'{"a": NaN}', "not JSON: it has no NaN"),
        (b'{"a": -Infinity}', "not JSON: it has no -Infinity"),
        (b"[" * 50_000, "nested too deeply"),
        (b'{"a":' * 10_000, "nested too deeply"),
        (b"1" * 50_000, "too many digits"),
        (b'{"a": 1} {"b": 2}', "not JSON: Extra data"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        ('{"num_gpus": 8}'.encode("utf-16"), "not UTF-8 at byte 0"),
        ('{"num_gpus": 8}'.encode("utf-16-le"), "not JSON"),
        (b'\xef\xbb\xbf{"num_gpus": 8}', "not JSON"),
    ],
)
def test_parse_refuses_in_one_line(text: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        parse(text)
    assert problem in str(caught.value)


@given(configs)
def test_encode_is_to_dict_as_json(config: TrainingConfig) -> None:
    answer = simulate(config)
    text = encode(answer, node="here")
    assert parse(text) == answer.to_dict() | {"node": "here"}
    assert list(parse(text)) == list(answer.to_dict())


@pytest.mark.parametrize("node", ["100 %", "%s", "%(a)d %% 5%", 'a "node" \\ ☃'])
def test_encode_takes_any_name_of_a_node(node: str) -> None:
    assert parse(encode(simulate(), node=node))["node"] == node


@given(configs)
def test_decode_reads_what_encode_wrote(config: TrainingConfig) -> None:
    answer = simulate(config)
    back = decode(encode(answer), config)
    assert compare(answer, back).agrees
    assert back.outputs() == answer.outputs()
    assert back.headroom_gb == pytest.approx(answer.headroom_gb, abs=0.003)
    assert (back.min_gpus_reason is None) == (answer.min_gpus_reason is None)
    assert (back.gpu_sweep.components.states >= 0).all()
    assert (back.seq_sweep.components.activations >= 0).all()


def test_decode_the_published_answer(published: dict[str, Any]) -> None:
    back = decode(json.dumps(published).encode(), TrainingConfig())
    assert back.to_dict() == published
    assert back.node == "ip-172-26-4-148"
    assert back.headroom_gb == pytest.approx(80 - 24.858)
    with pytest.raises(ValueError, match="ip-172-26-4-148 has no model"):
        _ = back.longest_sequence


def change(answer: dict[str, Any], where: str, value: Any) -> bytes:
    """Return the answer with one value replaced, or removed where `value` is `...`."""
    answer = copy.deepcopy(answer)
    *path, last = (int(step) if step.isdigit() else step for step in where.split("."))
    holder: Any = answer
    for step in path:
        holder = holder[step]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("where", "value", "problem"),
    [
        ("outputs", ..., "outputs: missing"),
        ("outputs", [], r"outputs: \[\] is not an object"),
        ("outputs.fits", ..., "outputs.fits: missing"),
        ("outputs.fits", 1, "outputs.fits: 1 is not true or false"),
        ("outputs.per_gpu_total_gb", "24.858", "'24.858' is not a finite number"),
        ("outputs.per_gpu_total_gb", True, "True is not a finite number"),
        ("outputs.per_gpu_total_gb", -1, "-1 is not a finite number from 0 up"),
        ("outputs.per_gpu_total_gb", 1e999, "not JSON: it has no Infinity"),
        ("outputs.per_gpu_total_gb", float("nan"), "not JSON: it has no NaN"),
        ("outputs.per_gpu_total_gb", 10**400, "is not a finite number"),
        ("outputs.weights_per_gpu_gb", 5.0, "16.0 is not the sum of its parts, 19.000"),
        ("outputs.weights_per_gpu_gb", 2.005, "16.0 is not the sum of its parts, 16.005"),
        ("outputs.min_gpus_to_fit", 2.5, "2.5 is not a whole number from 0 up, or null"),
        ("outputs.min_gpus_to_fit", 0, "0 is not a GPU count"),
        ("outputs.global_batch", 32.0, "outputs.global_batch: 32.0 is not a whole number"),
        ("outputs.verdict", None, "outputs.verdict: None is not a line of text"),
        ("outputs.verdict", "\x1b[31mred", "is not a line of text"),
        ("outputs.verdict", "x" * 5000, "is not a line of text of at most 1000"),
        ("node", ..., "node: missing"),
        ("node", 7, "node: 7 is not a line of text"),
        ("compute_ms", "fast", "compute_ms: 'fast'"),
        ("steps", 95, "steps: 95 is not 96"),
        ("inputs.num_gpus", 9, "inputs.num_gpus: answers 9 where 8 was asked"),
        ("inputs.num_gpus", ..., "inputs.num_gpus: missing"),
        ("profile.fits", False, "profile.fits: False is at odds with fits, True"),
        ("profile.num_gpus", 9, "profile.num_gpus: 9 is at odds with num_gpus, 8"),
        ("profile.capacity_gb", 81.0, "profile.capacity_gb: 81.0 is at odds"),
        ("profile.mem_vs_gpus", None, "profile.mem_vs_gpus: None instead of 48 points"),
        ("profile.mem_vs_gpus.47", ..., "profile.mem_vs_gpus: 47 points instead of 48"),
        ("profile.mem_vs_gpus.3", [1], r"mem_vs_gpus\[3\]: \[1\] is not a pair"),
        ("profile.mem_vs_gpus.3.0", 1.5, r"mem_vs_gpus\[3\]\[0\]: 1.5 is not a whole number"),
        ("profile.mem_vs_gpus.9.0", 1, r"mem_vs_gpus\[9\]\[0\]: 1 is below 4"),
        ("profile.mem_vs_gpus.0.0", 0, r"mem_vs_gpus\[0\]\[0\]: 0 is below 1"),
        ("profile.mem_vs_seq.5.1", "x", r"mem_vs_seq\[5\]\[1\]: 'x' is not a finite number"),
    ],
)
def test_decode_names_what_is_wrong(
    published: dict[str, Any], where: str, value: Any, problem: str
) -> None:
    with pytest.raises(BadAnswer, match=problem) as caught:
        decode(change(published, where, value), TrainingConfig())
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert caught.value.field in str(caught.value)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.data())
def test_decode_survives_any_change(published: dict[str, Any], data: st.DataObject) -> None:
    path, value = [], published
    while isinstance(value, dict | list) and (not path or data.draw(st.booleans())):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        path.append(data.draw(st.sampled_from(list(keys))))
        value = value[path[-1]]
    text = change(published, ".".join(map(str, path)), data.draw(junk))
    try:
        back = decode(text, TrainingConfig())
    except BadAnswer:
        return
    assert isinstance(back, trainmem.Simulation)
    assert isinstance(back.to_dict(), dict)


@given(st.binary(max_size=200))
def test_decode_survives_any_bytes(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        decode(data, TrainingConfig())


def test_other_names_in_an_answer_are_ignored(published: dict[str, Any]) -> None:
    answer = published | {"price": "free"}
    assert decode(json.dumps(answer).encode(), TrainingConfig()).to_dict() == published


def test_compare_lists_every_difference() -> None:
    config = TrainingConfig(grad_ckpt=0)
    local = simulate(config)
    theirs = local.to_dict()
    theirs["outputs"]["bytes_per_param"] = 18.0
    theirs["outputs"]["verdict"] = "no idea"
    theirs["profile"]["mem_vs_seq"][3][1] += 0.001
    theirs["profile"]["mem_vs_seq"][4][1] += 7
    result = compare(local, decode(json.dumps(theirs).encode(), config))
    assert not result.agrees
    assert [d.field for d in result.differences] == [
        "outputs.bytes_per_param",
        "outputs.verdict",
        "profile.mem_vs_seq",
    ]
    assert "outputs.bytes_per_param: 16.0 here, 18.0 there" in str(result)
    assert "profile.mem_vs_seq: 2 of 48 points differ" in str(result)


def test_rounding_is_no_difference_and_the_last_digit_is_one(published: dict[str, Any]) -> None:
    answer = copy.deepcopy(published)
    answer["outputs"]["weights_per_gpu_gb"] = 2.002  # each part may be rounded by half a digit
    result = compare(simulate(), decode(json.dumps(answer).encode(), TrainingConfig()))
    assert [str(d) for d in result.differences] == [
        "outputs.weights_per_gpu_gb: 2.0 here, 2.002 there"
    ]
    large = TrainingConfig(model_params_b=100_000, num_gpus=1)  # over a petabyte
    local = simulate(large)
    theirs = json.loads(encode(local))
    total = theirs["outputs"]["per_gpu_total_gb"] + 0.001
    theirs["outputs"]["per_gpu_total_gb"] = theirs["profile"]["per_gpu_gb"] = total
    result = compare(local, decode(json.dumps(theirs).encode(), large))
    assert [d.field for d in result.differences] == ["outputs.per_gpu_total_gb"]


def test_a_model_too_small_to_show_keeps_its_sweep() -> None:
    config = TrainingConfig(model_params_b=0.001, num_gpus=1_000_000, zero_stage=3)
    local = simulate(config)
    assert local.model_states_per_gpu_gb == 0.0
    assert compare(local, decode(encode(local), config)).agrees


@pytest.mark.parametrize(
    "error",
    [
        trainmem.Refused(422, "no"),
        trainmem.BadAnswer("node", "missing"),
        trainmem.CannotConnect("no route"),
        trainmem.TimedOut("too slow"),
    ],
)
def test_errors_survive_pickling(error: trainmem.RemoteError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
