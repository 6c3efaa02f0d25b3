"""The formulas: against an exact restatement, monotone, and the same for numbers and arrays."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import configs, values
from trainmem import FIELDS, TrainingConfig
from trainmem.reduced import CHUNK, REDUCED, Components, bytes_per_param, components, totals

INT_DTYPES = {  # the narrowest type that holds the field, and a wide one
    "num_gpus": (np.int32, np.uint32),
    "micro_batch": (np.int32, np.uint32),
    "seq_length": (np.int32, np.uint32),
    "num_layers": (np.int16, np.uint16),
    "hidden_dim": (np.int32, np.uint32),
    "zero_stage": (np.int8, np.uint8),
    "grad_ckpt": (np.int8, np.bool_),
    "precision_bits": (np.int8, np.uint8),
}


def exact(config: TrainingConfig) -> list[Fraction]:
    """Restate the model in rationals, one case at a time, as a textbook would."""
    params = Fraction(config.model_params_b) * 10**9
    beta = Fraction(config.precision_bits) / 8
    optimizer = params * (8 if config.precision_bits == 32 else 12)
    weights = gradients = params * beta
    if config.zero_stage >= 1:
        optimizer /= config.num_gpus
    if config.zero_stage >= 2:
        gradients /= config.num_gpus
    if config.zero_stage == 3:
        weights /= config.num_gpus
    sbh = config.seq_length * config.micro_batch * config.hidden_dim
    layer = 34 * (beta / 2) * sbh
    if config.grad_ckpt:
        activations = config.num_layers * beta * sbh + 2 * layer
    else:
        activations = config.num_layers * layer + layer
    return [weights, gradients, optimizer, activations]


@given(configs())
def test_every_case_agrees_with_exact_arithmetic(config):
    got = components(**config.to_dict())
    for size, truth in zip(got, exact(config), strict=True):
        assert size == pytest.approx(float(truth), rel=1e-14)
    assert got.total == pytest.approx(float(sum(exact(config))), rel=1e-14)
    assert got.states == pytest.approx(float(sum(exact(config)[:3])), rel=1e-14)


@pytest.mark.parametrize(("bits", "size"), [(8, 14), (16, 16), (32, 16)])
def test_bytes_per_parameter(bits, size):
    assert bytes_per_param(bits) == size
    assert REDUCED.bytes_per_param(TrainingConfig(precision_bits=bits)) == size


@given(configs(), st.sampled_from(["num_gpus", "seq_length", "micro_batch"]), st.data())
def test_monotone(config, name, data):
    other = config.replace(**{name: data.draw(values(FIELDS[name]))})
    low, high = sorted((config, other), key=lambda c: getattr(c, name))
    need, more = components(**low.to_dict()), components(**high.to_dict())
    if name == "num_gpus":
        assert more.total <= need.total
        assert more.activations == need.activations
    else:
        assert more.total >= need.total
        assert more.states == need.states


@given(configs())
def test_a_higher_stage_never_needs_more(config):
    need = [components(**config.replace(zero_stage=stage).to_dict()) for stage in range(4)]
    for stage, (lower, higher) in enumerate(pairwise(need)):
        assert higher.total <= lower.total
        shared = ("optimizer", "gradients", "weights")[stage]
        assert getattr(higher, shared) * config.num_gpus == pytest.approx(getattr(lower, shared))
        for name in {"weights", "gradients", "optimizer", "activations"} - {shared}:
            assert getattr(higher, name) == getattr(lower, name)


@given(configs(num_layers=st.integers(2, 10_000)))
def test_checkpointing_frees_from_two_layers_on(config):
    on = components(**config.replace(grad_ckpt=1).to_dict())
    off = components(**config.replace(grad_ckpt=0).to_dict())
    assert on.activations < off.activations
    assert on.states == off.states


@given(configs())
def test_the_card_does_not_change_the_need(config):
    inputs = config.to_dict()
    assert components(**inputs) == components(**inputs | {"gpu_memory_gb": 1.0})


@given(st.lists(configs(), min_size=1, max_size=20), st.data())
def test_arrays_equal_numbers_bit_for_bit(rows, data):
    columns = {name: [getattr(row, name) for row in rows] for name in FIELDS}
    arrays = {
        name: np.array(
            column,
            dtype=data.draw(st.sampled_from((np.float64, *INT_DTYPES.get(name, ())))),
        )
        for name, column in columns.items()
    }
    together = components(**arrays)
    for i, row in enumerate(rows):
        alone = components(**row.to_dict())
        assert [part[i] for part in together] == list(alone)
        assert together.total[i] == alone.total
        assert together.states[i] == alone.states


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtypes", [0, 1], ids=["signed", "unsigned"])
def test_nothing_overflows_at_the_bounds(dtypes):
    ends = {
        name: np.array(
            field.choices or field.bounds,
            dtype=INT_DTYPES[name][dtypes] if name in INT_DTYPES else np.float64,
        )
        for name, field in FIELDS.items()
    }
    grid = dict(zip(ends, np.meshgrid(*ends.values(), indexing="ij"), strict=True))
    for part in components(**grid):
        assert np.isfinite(part).all()
        assert (part > 0).all()
    wide = {name: array.astype(np.float64) for name, array in grid.items()}
    np.testing.assert_array_equal(components(**grid).total, components(**wide).total)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scalar", [np.int64, np.uint64, np.float64])
def test_numpy_scalars_are_numbers_too(scalar):
    inputs = {name: FIELDS[name].bounds[1] for name in FIELDS}
    given_scalars = {name: scalar(value) for name, value in inputs.items()}
    assert components(**given_scalars) == components(**inputs)


def test_numbers_stay_python_floats():
    assert [type(part) for part in components(**TrainingConfig().to_dict())] == [float] * 4


def test_parts_keep_the_shape_of_their_own_inputs():
    gpus = np.array([1, 2, 3])
    need = REDUCED.components(TrainingConfig(), num_gpus=gpus)
    assert need.weights.shape == need.gradients.shape == need.optimizer.shape == (3,)
    assert np.shape(need.activations) == ()
    lengths = np.array([512.0, 1024.0])
    assert REDUCED.components(TrainingConfig(), seq_length=lengths).activations.shape == (2,)


def test_mixed_switches_in_one_array():
    mixed = components(**TrainingConfig().to_dict() | {"grad_ckpt": np.array([0, 1, 0])})
    alone = [components(**TrainingConfig(grad_ckpt=k).to_dict()).activations for k in (0, 1, 0)]
    assert mixed.activations.tolist() == alone


GRIDS = {
    "numbers": {},
    "one axis": {"num_gpus": np.arange(1, 4097)},
    "many chunks": {"num_gpus": np.arange(1, 3 * CHUNK + 8)},
    "two axes": {"num_gpus": np.arange(1, 130)[:, None], "seq_length": np.arange(1, 200)[None]},
    "every switch": {
        "zero_stage": np.arange(4)[:, None, None],
        "grad_ckpt": np.array([0, 1])[:, None],
        "precision_bits": np.array([8, 16, 32]),
    },
    "not contiguous": {"num_gpus": np.arange(1, 40_000).reshape(3, -1).T[::2]},
    "Fortran order": {"micro_batch": np.asfortranarray(np.arange(1, 20_001).reshape(100, 200))},
    "empty": {"num_gpus": np.arange(0)},
    "a list": {"seq_length": [512, 1024, 2048]},
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_totals_is_the_total_of_components(grid):
    inputs = TrainingConfig().to_dict() | grid
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    expected = components(**arrays).total
    got = totals(**inputs)
    assert got.dtype == np.float64
    shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    np.testing.assert_array_equal(got, np.broadcast_to(expected, shape), strict=True)


@settings(max_examples=25)
@given(configs(), st.integers(1, 2 * CHUNK + 5))
def test_totals_of_any_length(config, length):
    gpus = np.linspace(1, 1_000_000, length).astype(np.int64)
    got = totals(**config.to_dict() | {"num_gpus": gpus})
    expected = REDUCED.components(config, num_gpus=gpus).total
    np.testing.assert_array_equal(got, np.broadcast_to(expected, gpus.shape))


def test_components_add_up():
    parts = Components(1.0, 2.0, 4.0, 8.0)
    assert parts.states == 7.0
    assert parts.total == 15.0
