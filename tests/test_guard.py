"""A sample of every prediction as it was written down; `python -m tests.guard compare` has all."""

from __future__ import annotations

import pytest

import guard

KNOWN = guard.known()
PLANS = [name for name in KNOWN if name.startswith("plan ")]


@pytest.mark.parametrize("name", PLANS[::60])
def test_a_plan_is_predicted_as_before(name):
    assert not guard.differences(KNOWN, {name: guard.of_plan(name)})


def test_the_published_answer_is_the_same_on_every_path():
    assert not guard.differences(KNOWN, dict(guard.published()))


def test_every_name_that_people_import_is_there():
    found = dict(guard.names())
    assert all(found.values()), [name for name, there in found.items() if not there]


def test_a_changed_prediction_is_seen():
    name = PLANS[0]
    changed = {**KNOWN[name], "peak": 1}
    assert guard.differences(KNOWN, {name: changed})
