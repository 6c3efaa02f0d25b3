"""The client against a real server, over sockets: answers, futures, arguments."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import pytest

import trainmem
from trainmem import (
    AsyncClient,
    CannotConnect,
    Client,
    ConfigError,
    Refused,
    TrainingConfig,
    simulate,
)

from .replies import GOOD, reply, silence

# -- A real server


def test_simulate_gives_the_same_type_and_numbers(server: Any) -> None:
    config = TrainingConfig(num_gpus=64, zero_stage=1, grad_ckpt=0)
    local = simulate(config)
    with Client(server.url) as client:
        remote = client.simulate(config)
        assert client.simulate(num_gpus=64, zero_stage=1, grad_ckpt=0).outputs() == local.outputs()
    assert type(remote) is type(local)
    assert remote.outputs() == local.outputs()
    assert remote.to_dict()["profile"] == local.to_dict()["profile"]
    assert remote.node == server.status()["node"]
    assert remote.model is None
    assert remote.min_gpus_reason == local.min_gpus_reason


def test_compare_with_a_server_of_the_same_model_agrees(server: Any) -> None:
    with Client(server.url) as client:
        result = client.compare(grad_ckpt=0)
    assert result.agrees
    assert str(result) == f"{result.remote.node} agrees with this machine in every field"


def test_compare_names_the_fields_of_another_model(tools: Any) -> None:
    prelude = "from trainmem import reduced; reduced.LAYER_BYTES = 40.0"
    with tools.running(prelude) as other, Client(other.url) as client:
        fields = [difference.field for difference in client.compare().differences]
    assert fields == [
        "outputs.activations_per_gpu_gb",
        "outputs.per_gpu_total_gb",
        "outputs.utilization_percent",
        "outputs.aggregate_cluster_gb",
        "profile.mem_vs_gpus",
        "profile.mem_vs_seq",
    ]


def test_async_twin(server: Any) -> None:
    async def ask() -> list[trainmem.Simulation]:
        async with AsyncClient(server.url) as client:
            assert (await client.compare()).agrees
            return await asyncio.gather(*(client.simulate(num_gpus=n) for n in range(1, 9)))

    assert [answer.config.num_gpus for answer in asyncio.run(ask())] == list(range(1, 9))


def test_client_works_inside_a_running_loop(server: Any) -> None:
    async def cell() -> trainmem.Simulation:
        with Client(server.url) as client:
            return client.simulate()

    assert asyncio.run(cell()).fits


def test_one_client_in_many_threads(server: Any) -> None:
    answers: dict[int, int] = {}
    with Client(server.url) as client:

        def ask(count: int) -> None:
            answers[count] = client.simulate(num_gpus=count).config.num_gpus

        threads = [threading.Thread(target=ask, args=(count,)) for count in range(1, 13)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {count: count for count in range(1, 13)}


def test_server_refuses_in_its_own_words(server: Any) -> None:
    for client, words in (
        (Client(server.url, path="/edge/status"), r"by the server \(405\): 'POST' is not allowed"),
        (Client(server.url + "/elsewhere/"), r"by the server \(404\): nothing is at '/elsewhere/"),
    ):
        with client, pytest.raises(Refused, match=words):
            client.simulate()


def test_server_killed_while_waiting(tools: Any) -> None:
    with tools.running("import time; server.simulate = lambda _: time.sleep(60)") as one:
        client = Client(one.url, retries=1)
        future = client.submit()
        time.sleep(0.5)
        assert not future.done()
        os.killpg(one.process.pid, signal.SIGKILL)
        with pytest.raises(CannotConnect, match="Connection refused"):
            future.result(timeout=10)
        client.close()


# -- Futures, closing, arguments


def test_cancelling_drops_the_connection(misbehaving: Any) -> None:
    server = misbehaving(silence)
    with Client(server.url) as client:
        future = client.submit()
        while not server.requests:
            time.sleep(0.01)
        assert not future.done()
        assert future.cancel()
        assert server.hung_up.wait(5)
        server.replies = (reply(GOOD),)
        assert client.simulate().fits  # still of use


def test_closing_cancels_what_is_under_way(misbehaving: Any) -> None:
    server = misbehaving(silence)
    client = Client(server.url)
    future = client.submit()
    while not server.requests:
        time.sleep(0.01)
    client.close()
    with pytest.raises(CancelledError):
        future.result(timeout=5)
    assert server.hung_up.wait(5)
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.simulate()
    client.close()


def client_threads() -> int:
    return sum(thread.name == "trainmem-client" for thread in threading.enumerate())


def test_forgotten_client_leaves_no_thread(server: Any) -> None:
    before = client_threads()
    client = Client(server.url)
    assert client_threads() == before  # none before it is used
    client.simulate()
    assert client_threads() == before + 1
    del client
    gc.collect()
    assert client_threads() == before


def test_interrupted_wait_cancels(misbehaving: Any) -> None:
    server = misbehaving(silence)
    with Client(server.url) as client:

        def interrupt() -> None:
            while not server.requests:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            client.simulate()
        assert server.hung_up.wait(5)


def test_bad_input_is_never_sent(misbehaving: Any) -> None:
    server = misbehaving(reply(GOOD))
    with Client(server.url) as client:
        for call in (client.simulate, client.submit, client.compare):
            with pytest.raises(ConfigError, match="num_gpus: 0 is not allowed"):
                call(num_gpus=0)
            with pytest.raises(TypeError, match="config must be a TrainingConfig"):
                call({"num_gpus": 1})
    assert server.requests == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("chipfoundryservices.com", "must begin with http:// or https://"),
        ("ftp://a.example", "must begin with http:// or https://"),
        ("http://", "name a host"),
        ("https://user:word@a.example", "must be a plain address"),
        ("https://a.example/?q=1", "must be a plain address"),
        ("https://[", "is not an address"),
        ("http://a b/", "is not an address"),
        ("http://xn--a/", "is not an address"),
        ("http://a.example:99999999", "must have a port from 1 to 65535"),
        (None, "is not an address"),
    ],
)
def test_bad_address(url: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=f"base_url: .*{problem}"):
        Client(url)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match=r"path: .* is not a path"):
        Client(path="/" + "a" * 70_000)
    for options in ({"timeout": 0}, {"connect_timeout": float("nan")}):
        with pytest.raises(ValueError, match="must be above 0 s"):
            Client(**options)
    for retries in (-1, 11):
        with pytest.raises(ValueError, match=r"retries: .* must be from 0 to 10"):
            Client(retries=retries)
    with pytest.raises(TypeError):
        Client(verify=False)  # type: ignore[call-arg]


def test_published_address_is_the_default() -> None:
    client = Client()
    assert repr(client) == "<Client https://www.chipfoundryservices.com/edge/training>"
    assert client.host == "www.chipfoundryservices.com"
    assert repr(AsyncClient("http://[::1]:8000/"))[:-1].endswith("http://[::1]:8000/edge/training")
