"""A check against a server in the background: no blocking, no late answers, plain words."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import Future

import pytest

import trainmem
from trainmem.http.answer import CannotConnect
from trainmem.http.remote_check import RemoteCheck

LOCAL = trainmem.simulate()


class Server:
    """Answers when told to."""

    host = "node.example"

    def __init__(self):
        self.futures = []
        self.configs = []

    def submit(self, config):
        self.configs.append(config)
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def told():
    return []


@pytest.fixture
def check(server, told):
    return RemoteCheck(server, told.append, threading.RLock())


def test_an_answer_that_agrees(check, server, told):
    check.ask(LOCAL)
    assert told[-1]["state"] == "running"
    assert "node.example" in told[-1]["text"]
    assert server.configs == [LOCAL.config]
    server.futures[0].set_result(dataclasses.replace(LOCAL, node="a", compute_ms=0.9))
    assert told[-1]["state"] == "agrees"
    assert told[-1]["text"] == "a answered in 0.9 ms and agrees in every field."


def test_an_answer_that_differs_names_the_fields(check, server, told):
    check.ask(LOCAL)
    other = dataclasses.replace(LOCAL, activations_per_gpu_gb=9.5, per_gpu_total_gb=25.5)
    server.futures[0].set_result(other)
    assert told[-1]["state"] == "differs"
    assert "activations_per_gpu_gb" in told[-1]["text"]
    assert "9.5" in told[-1]["text"]


def test_a_failure_is_said_in_plain_words(check, server, told):
    check.ask(LOCAL)
    server.futures[0].set_exception(CannotConnect("cannot connect to node.example"))
    assert told[-1] == {
        "host": "node.example", "state": "failed", "text": "Cannot connect to node.example.",
    }  # fmt: skip


def test_a_closed_client_is_a_failure_not_an_exception(check, server, told):
    def refuse(config):
        raise RuntimeError("the client is closed")

    server.submit = refuse
    check.ask(LOCAL)
    assert told[-1]["state"] == "failed"


def test_a_late_answer_for_old_inputs_is_dropped(check, server, told):
    check.ask(LOCAL)
    check.drop()
    assert server.futures[0].cancelled()
    assert told[-1]["state"] == "idle"
    before = len(told)
    check._answered(server.futures[0], LOCAL)  # as if it had come all the same
    assert len(told) == before


def test_asking_again_replaces_the_question(check, server, told):
    check.ask(LOCAL)
    check.ask(LOCAL)
    assert server.futures[0].cancelled()
    server.futures[1].set_result(LOCAL)
    assert told[-1]["state"] == "agrees"


def test_an_old_result_goes_when_the_inputs_change(server):
    widget = trainmem.TrainingMemoryWidget(remote=server)
    try:
        widget._on_remote({})
        server.futures[0].set_result(LOCAL)
        assert widget._remote["state"] == "agrees"
        widget.num_gpus = 64
        assert widget._remote == {"host": "node.example", "state": "idle", "text": ""}
    finally:
        widget.close()


def test_closing_the_widget_cancels(server):
    widget = trainmem.TrainingMemoryWidget(remote=server)
    widget._on_remote({})
    widget.close()
    assert server.futures[0].cancelled()


def test_an_answer_from_another_thread_waits_for_the_widget(server):
    """One lock for both: an answer during a change neither deadlocks nor shows."""
    widget = trainmem.TrainingMemoryWidget(remote=server)
    try:
        widget._on_remote({})
        answer = threading.Thread(target=server.futures[0].set_result, args=(LOCAL,))
        with widget._lock:
            answer.start()
            widget.num_gpus = 64
        answer.join(10)
        assert not answer.is_alive()
        assert widget._remote["state"] == "idle"
    finally:
        widget.close()


def test_without_a_server_there_is_no_button():
    widget = trainmem.TrainingMemoryWidget()
    assert widget._remote == {}
    widget._on_remote({})
    assert widget._remote == {}
    widget.close()
